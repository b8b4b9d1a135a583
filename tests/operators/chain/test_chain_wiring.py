"""Wrong chain jobs are refused at deploy, with the location and what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.dag.catalog import Catalog, PublishedDataset
from tracelake.domain.dag.hashes import generation_ids
from tracelake.domain.dag.model import Storage
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import OrgId
from tracelake.errors import InvalidDag, InvalidRequest, Problem
from tracelake.operators.api.context import Resources
from tracelake.operators.helpers.chain_tables import pool_of
from tracelake.operators.registry import WORKER_OPERATORS
from tracelake.settings import RUNTIMES

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev}
    outputs: [blocks, transactions, logs]
  - name: job
"""
INGEST = "    operator: cryo_ingest\n    inputs: [{from: {job: ask}}]\n"
DECODE = "    operator: evm_decode\n    inputs: [{from: {job: ask}}]\n"
COMPACT = "    operator: parquet_compact\n"
HOT = "{from: {job: ask}}, {from: {job: follow, output: logs}, trigger: false}"
SWAPPED = HOT + ", {from: {job: follow, output: blocks}, trigger: false}"


@pytest.mark.parametrize(
    ("job", "line", "reason", "suggestion"),
    [
        (
            INGEST + "    config: {rpc_pool: dev}\n    outputs: [blocks, logs]",
            14,
            "3 tables (blocks, transactions, logs) need as many outputs, and the job has 2",
            "outputs: [blocks, transactions, logs]",
        ),
        (
            INGEST + "    config: {rpc_pool: dev, tables: [blocks]}\n    outputs: [blocks, logs]",
            14,
            "1 table (blocks) need as many outputs, and the job has 2",
            "outputs: [blocks]",
        ),
        (
            INGEST + "    config: {rpc_pool: dev, tables: [logs, blocks]}\n    outputs: [blocks, logs]",
            14,
            "output 'blocks' would hold the logs: outputs must be in the order of tables",
            "outputs: [logs, blocks]",
        ),
        (
            COMPACT + "    config: {tables: [blocks, logs]}\n    outputs: [blocks, logs]\n    inputs: [" + HOT + "]",
            13,
            "2 hot tables and the input with the ranges need 3 inputs, and the job has 2",
            "name the follower's outputs as inputs",
        ),
        (
            COMPACT
            + "    config: {tables: [blocks, logs]}\n    outputs: [blocks, logs]\n    inputs: ["
            + SWAPPED
            + "]",
            13,
            "inputs logs, blocks are the hot tables blocks, logs: inputs must be in the order of tables",
            "name the follower's outputs as inputs",
        ),
        (
            DECODE + "    config: {abi: erc20, events: [transfer, approval]}\n    outputs: [transfers]",
            14,
            "2 events cannot become 1 outputs",
            "outputs: [transfer, approval]",
        ),
        (
            DECODE + "    config: {abi: erc20, events: [swap]}",
            14,
            "the ABI has no event 'swap'",
            "it has transfer, approval",
        ),
        (
            DECODE + '    config: {abi: \'[{"type": "event"}]\', events: [swap]}',
            14,
            "/0/name: an event has a name",
            "",
        ),
        (
            DECODE + "    config: {abi_file: a.json, events: [swap]}",
            14,
            "abi_file is read where the DAG is deployed from",
            "",
        ),
    ],
)
def test_a_chain_job_that_cannot_work_is_refused_at_deploy(job: str, line: int, reason: str, suggestion: str) -> None:
    problem = refusal(DAG + job)
    assert reason in problem.reason
    assert suggestion in (problem.suggestion or "")
    assert problem.line == line


@pytest.mark.parametrize(
    "given",
    ["https://node.example/v3/SECRET-KEY-1", "https://me:SECRET-KEY-1@node", "Main", "a-b", "", "x" * 9 + "?k=v"],
)
@pytest.mark.parametrize("operator", ["follow", "ingest"])
def test_an_address_instead_of_a_pool_name_is_refused_and_not_repeated(operator: str, given: str) -> None:
    job = INGEST + "    config: {rpc_pool: NAMED}\n    outputs: [blocks, transactions, logs]"
    dag = (DAG + job) if operator == "ingest" else DAG.replace("rpc_pool: dev", "rpc_pool: NAMED") + NOOP
    problem = refusal(dag.replace("NAMED", json.dumps(given)))
    assert (problem.line, problem.field.rpartition(".")[2]) == (14 if operator == "ingest" else 9, "rpc_pool")
    assert "not the name of a pool" in problem.reason
    assert not given or given not in repr(problem)
    assert "SECRET" not in repr(problem)


def test_an_unknown_pool_is_named_in_the_error_and_an_address_is_not() -> None:
    resources = Resources("", {"main": None})
    with pytest.raises(InvalidRequest, match="'other'") as refused:
        pool_of(resources, "other")
    assert "main" in str(refused.value.hint)
    with pytest.raises(InvalidRequest) as refused:
        pool_of(resources, "https://node.example/v3/SECRET-KEY-1")
    assert "SECRET" not in repr(refused.value.as_dict())


def test_a_follower_may_have_one_output_more_and_not_two() -> None:
    parse_dag(DAG.replace("[blocks, transactions, logs]", "[blocks, transactions, logs, final]") + NOOP, CATALOG)
    problem = refusal(DAG.replace("[blocks, transactions, logs]", "[blocks, transactions]") + NOOP)
    assert "need as many outputs, or 4, and the job has 2" in problem.reason


def test_a_follower_starts_at_a_valid_block_number() -> None:
    problem = refusal(DAG.replace("{rpc_pool: dev}", "{rpc_pool: dev, start_block: -5}") + NOOP)
    assert "blocks are numbered from 0" in problem.reason
    assert (problem.line, problem.field) == (9, "jobs[1].config.start_block")


@pytest.mark.parametrize(
    ("job", "setting", "decides"),
    [
        ("follow", "poll_seconds: 7", False),
        ("follow", "batch: 7", False),
        ("follow", "start_block: 7", True),
        ("follow", "emit_strategy: per_block", True),
        ("follow", "confirmations: 7", True),
        ("ingest", "chunk: 7", False),
        ("compact", "chunk: 7", False),
        ("compact", "grace_seconds: 7", False),
        ("compact", "delete_after_compact: false", False),
    ],
)
def test_tuning_settings_of_a_chain_job_make_no_new_generation(job: str, setting: str, decides: bool) -> None:
    before = parse_dag(TUNED, CATALOG)
    after = parse_dag(TUNED.replace(f"name: {job}\n    config: {{", f"name: {job}\n    config: {{{setting}, "), CATALOG)
    assert after.yaml_hash != before.yaml_hash
    assert (generation_ids(after, ORG) != generation_ids(before, ORG)) == decides
    name, _, value = setting.partition(": ")
    [changed] = [item for item in after.jobs if item.name == job]
    assert str(changed.config[name]).lower() == value


def test_every_tuning_setting_is_a_field_of_its_operator() -> None:
    tuned = {name: worker for name, worker in WORKER_OPERATORS.items() if worker.spec.tuning}
    assert "block_follower" in tuned
    for name, item in tuned.items():
        assert set(item.spec.tuning) <= set(item.config.model_fields), name


def test_a_custom_abi_is_part_of_the_config_hash() -> None:
    swap = json.dumps([{"type": "event", "name": "Swap", "inputs": []}])
    dag = parse_dag(f"{DAG}{DECODE}    config: {{abi: '{swap}', events: [swap]}}", CATALOG)
    assert json.loads(dag.jobs[-1].config["abi"])[0]["name"] == "Swap"


def an_abi(kind: str, **more: Any) -> str:
    return json.dumps([{"type": "event", "name": "Swap", "inputs": [{"type": kind, "name": "a", **more}]}])


def deep_tuples(depth: int) -> list[Any]:
    inner: list[Any] = [{"type": "bool", "name": "a"}]
    for _ in range(depth):
        inner = [{"type": "tuple", "name": "a", "components": inner}]
    return inner


@pytest.mark.parametrize(
    "abi",
    [
        "[" * 5_000,
        "[" * 200_000,
        '{"abi":' * 5_000,
        "9" * 5_000,
        "erc21",
        "",
        an_abi("uint8[" + "9" * 5_000 + "]"),
        an_abi("uint8" + "[99999]" * 16),
        an_abi("uint8[٩]"),
        an_abi("uint" + "9" * 5_000),
        an_abi("uint8\n"),
        an_abi("bytes" + "9" * 5_000),
        an_abi("uint8" + "[]" * 5_000),
        an_abi("tuple", components=deep_tuples(20)),
        an_abi("tuple", components=deep_tuples(150)),
        an_abi("uint8").replace('"uint8"', "[" * 300 + "]" * 300),
        an_abi("x" * 200_000),
    ],
    ids=range(17),
)
def test_an_unreadable_abi_is_refused_with_its_location(abi: str) -> None:
    problem = refusal(f"{DAG}{DECODE}    config:\n      events: [swap]\n      abi: {json.dumps(abi)}\n")
    assert (problem.line, problem.column, problem.field) == (16, 12, "jobs[2].config.abi")
    assert problem.code == "invalid_abi"
    assert len(problem.reason) < 300


def test_an_unknown_abi_name_is_refused_with_a_suggestion() -> None:
    problem = refusal(f"{DAG}{DECODE}    config: {{events: [transfer], abi: erc_20}}\n")
    assert (problem.reason, problem.suggestion) == ("there is no ABI called 'erc_20'", "did you mean erc20?")


READERS = {
    "sql": "    config: {query: SELECT block_number FROM logs}\n",
    "python": '    config: {function: "a.b:c"}\n',
    "quality": "    config: {checks: [{kind: not_null, columns: [data]}]}\n",
    "evm_decode": "    config: {abi: erc20, events: [transfer]}\n",
}
HOT_FOLLOWED = "{job: follow, output: logs}"


@pytest.mark.parametrize("operator", READERS)
@pytest.mark.parametrize("upstream", [HOT_FOLLOWED, "{dataset: tip_logs}"])
def test_a_hot_table_is_refused_where_rows_are_read_from_files(operator: str, upstream: str) -> None:
    inputs = f"    inputs:\n      - {{name: logs, from: {upstream}}}\n"
    problem = refusal(f"{DAG}    operator: {operator}\n{READERS[operator]}{inputs}", WITH_TIP)
    assert (problem.line, problem.field, problem.code) == (15, "jobs[2].inputs[0].from", "hot_input")
    assert f"'logs' is a hot table, and {operator} reads datasets of files" in problem.reason
    assert "parquet_compact" in (problem.suggestion or "")


def test_a_query_may_follow_a_hot_table_that_it_does_not_read() -> None:
    config = "    operator: sql\n    config: {query: SELECT block_number FROM cold}\n"
    inputs = f"    inputs: [{{from: {HOT_FOLLOWED}}}, {{from: {{dataset: cold_logs}}, name: cold, trigger: false}}]\n"
    parse_dag(DAG + config + inputs, WITH_TIP)


TUNED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - name: ask
    operator: noop
    runtime: dispatcher
    source: {kind: manual}
  - name: follow
    config: {rpc_pool: dev, tables: [blocks]}
    operator: block_follower
    source: {kind: always_on}
    outputs: [blocks]
  - name: ingest
    config: {rpc_pool: dev, tables: [blocks]}
    operator: cryo_ingest
    inputs: [{from: {job: ask}}]
    outputs: [blocks]
  - name: compact
    config: {tables: [blocks]}
    operator: parquet_compact
    inputs: [{from: {job: ask}}, {from: {job: follow, output: blocks}, trigger: false}]
    outputs: [blocks]
"""
ORG = OrgId(UUID(int=1))
CATALOG = Catalog(operators(), runtime_specs(RUNTIMES))
WITH_TIP = replace(
    CATALOG,
    published={
        "tip_logs": PublishedDataset("tip", storage=Storage.POSTGRES),
        "cold_logs": PublishedDataset("tip", storage=Storage.PARQUET),
    },
)
NOOP = "    operator: noop\n    runtime: dispatcher\n    inputs: [{from: {job: ask}}]"


def refusal(text: str, catalog: Catalog = CATALOG) -> Problem:
    with pytest.raises(InvalidDag) as refused:
        parse_dag(text, catalog)
    (problem,) = refused.value.problems
    return problem
