"""What decides the rows that tasks of a job write, beside those that they read."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_fields import HOW_IT_RUNS
from tracelake.domain.dag.hashes import memo_hash
from tracelake.domain.dag.model import (
    Activation,
    Bootstrap,
    DagInput,
    DagOutput,
    ExecutionStrategy,
    Job,
    JobOutput,
    Source,
    SourceKind,
    Storage,
    Udf,
    UpdateStrategy,
)
from tracelake.domain.filter.parse import parse_where
from tracelake.domain.ids import DatasetName, JobName
from tracelake.operators.registry import specs

BLOCKS = DagInput("blocks", JobOutput(JobName("load"), 0))
OUTPUT = DagOutput(0, "made", Storage.PARQUET)
QUERY = {"query": "SELECT number FROM blocks"}
JOB = Job(
    JobName("make"), Activation.REACTIVE, "ecs_platform", "sql", config=QUERY, inputs=(BLOCKS,), outputs=(OUTPUT,)
)
DECODE = replace(JOB, operator="evm_decode", config={"abi": "erc20", "events": ["transfer"]})
CHANGES: dict[str, list[Any]] = {
    "config": [{"query": "SELECT number + 1 AS number FROM blocks"}, {**QUERY, "mode": "full"}, {**QUERY, "files": 2}],
    "inputs": [
        (replace(BLOCKS, where=parse_where("number > 3")),),
        (replace(BLOCKS, trigger=False),),
        (BLOCKS, replace(BLOCKS, name="more")),
    ],
    "outputs": [(OUTPUT, replace(OUTPUT, index=1))],
    "update_strategy": [UpdateStrategy.APPEND],
    "unique_key": [("number",)],
    "execution_strategy": [ExecutionStrategy.PER_PARTITION],
}
KEEPS: dict[str, list[Any]] = {
    "config": [{"query": "select number\n  -- the number\nFROM blocks"}],
    "inputs": [(replace(BLOCKS, upstream=JobOutput(JobName("renamed"), 1)),)],
    "outputs": [(replace(OUTPUT, name="renamed"),)],
    "runtime": ["lambda"],
    **{name: [value] for name, value in HOW_IT_RUNS.items()},
}
REFUSES: dict[str, list[Any]] = {
    "operator": ["python", "udf", "parquet_compact", "read_files", "quality", "noop", "unknown"],
    "inputs": [()],
    "outputs": [(replace(OUTPUT, storage=Storage.BUFFERED),), (replace(OUTPUT, dataset=DatasetName("alerts")),), ()],
    "source": [Source(SourceKind.MANUAL)],
    "bootstrap": [Bootstrap(reset_outputs=True)],
    "udf": [Udf("a.zip", "0" * 64, "main.handler")],
    "secrets": [("KEY",)],
}


def hashed(job: Job) -> str | None:
    return memo_hash(job, specs().get(job.operator))


def test_every_field_of_a_job_changes_the_hash_or_keeps_it_or_means_that_nothing_is_used_again() -> None:
    assert {field.name for field in fields(Job)} == CHANGES.keys() | KEEPS.keys() | REFUSES.keys()
    own = hashed(JOB)
    assert own is not None
    found = [hashed(replace(JOB, **{name: value})) for name, values in CHANGES.items() for value in values]
    assert len({own, *found} - {None}) == 1 + len(found), "each is another one"
    for name, values in KEEPS.items():
        assert {hashed(replace(JOB, **{name: value})) for value in values} == {own}, name
    for name, values in REFUSES.items():
        assert {hashed(replace(JOB, **{name: value})) for value in values} == {None}, name


def test_settings_that_cause_no_new_generation_do_not_count() -> None:
    assert hashed(replace(DECODE, config={**DECODE.config, "files": 7})) == hashed(DECODE) != None  # noqa: E711
    assert hashed(replace(DECODE, config={**DECODE.config, "events": ["approval"]})) != hashed(DECODE)


def test_listed_addresses_do_not_count_but_that_there_is_a_list_does() -> None:
    first, second = (
        replace(DECODE, config={**DECODE.config, "addresses": addresses})
        for addresses in (["0x" + "aa" * 20], ["0x" + "aa" * 20, "0x" + "bb" * 20])
    )
    assert hashed(first) == hashed(second) not in {None, hashed(DECODE)}
    query = "SELECT number FROM blocks WHERE address {} (X'aa')"
    listed = {hashed(replace(JOB, config={"query": query.format(word)})) for word in ("IN", "NOT IN", "=")}
    assert len(listed) == 3


def test_evm_decode_with_several_inputs_reads_more_than_its_range() -> None:
    assert hashed(replace(DECODE, inputs=(BLOCKS, replace(BLOCKS, name="more")))) is None


@pytest.mark.parametrize(
    "query",
    ["SELECT to_timestamp(concat('n', 'ow')) AS at FROM blocks", "SELECT year(concat('to', 'day')) AS y FROM blocks"],
)
def test_a_query_that_may_ask_a_clock_is_never_used_again(query: str) -> None:
    assert hashed(replace(JOB, config={"query": query})) is None


CONFIGS = st.fixed_dictionaries(
    {"query": st.sampled_from(["SELECT a FROM blocks", "SELECT b FROM blocks", "SELECT a FROM blocks WHERE a > 1"])},
    optional={"mode": st.sampled_from(["partition", "full"]), "files": st.integers(1, 3)},
)
WHERES = st.sampled_from([None, "a = 1", "a = 2", "a = 1 and b = 2"])


@given(CONFIGS, CONFIGS, WHERES, WHERES)
def test_two_jobs_have_the_same_hash_exactly_if_config_and_filter_are_the_same(
    config: dict[str, Any], other: dict[str, Any], where: str | None, wherever: str | None
) -> None:
    first, second = (
        replace(JOB, config=config, inputs=(replace(BLOCKS, where=parse_where(text) if text else None),))
        for config, text in ((config, where), (other, wherever))
    )
    assert (hashed(first) == hashed(second)) == ((config, where) == (other, wherever))
