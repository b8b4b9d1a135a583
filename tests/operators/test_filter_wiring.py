"""A `where` is accepted where an operator reads the rows, and refused where it would change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.model import Dag
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.filter.parse import parse_where
from tracelake.errors import InvalidDag
from tracelake.operators.registry import specs
from tracelake.settings import RUNTIMES

KNOWN = Catalog(specs(), runtime_specs(RUNTIMES))
WHERE = "severity = 'critical'"
BUNDLE = f"    runtime: ecs_udf\n    udf: {{bundle: code, sha256: '{'0' * 64}'}}\n"
COMPACT = "{from: {job: follow, output: blocks}, trigger: false, where: W}, {from: {job: follow, output: final}}"
HONOURED = {
    "sql": "    config: {query: SELECT a FROM rows}\n",
    "python": '    config: {function: "a.b:c"}\n',
    "quality": "    config: {checks: [{kind: not_null, columns: [a]}]}\n",
    "evm_decode": "    config: {abi: erc20, events: [transfer]}\n",
    "alert_route": "",
    "udf": BUNDLE,
}
IGNORED = {
    "noop": "",
    "range_splitter": "    runtime: dispatcher\n    config: {chunk: 5}\n",
    "range_aggregator": "    runtime: dispatcher\n    config: {size: 5}\n",
    "cryo_ingest": "    config: {rpc_pool: main, tables: [blocks]}\n",
    "read_files": "    config: {path: a, format: csv, columns: [a string]}\n",
    "parquet_compact": "    config: {tables: [blocks]}\n",
}
ELSEWHERE = {"alert_evaluate", "block_follower"}
"""The first needs defined alerts (`test_alert_wiring`), the second has no inputs."""


def dag(operator: str, rest: str, where: str = WHERE) -> str:
    inputs = COMPACT if operator == "parquet_compact" else "{name: rows, from: {job: ask}, where: W}"
    return f"""name: d
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: noop, source: {{kind: manual}}}}
  - {{name: follow, operator: block_follower, config: {{rpc_pool: main, tables: [blocks]}},
     source: {{kind: always_on}}, outputs: [blocks, final]}}
  - name: job
    operator: {operator}
{rest}    inputs: [{inputs.replace("W", repr(where) if "'" not in where else f'"{where}"')}]
"""


def parsed(text: str, known: Catalog = KNOWN) -> Dag:
    return parse_dag(text, known)


@pytest.mark.parametrize("operator", HONOURED)
def test_a_filter_is_accepted_where_its_rows_are_read(operator: str) -> None:
    (*_, job) = parsed(dag(operator, HONOURED[operator])).jobs
    assert [item.where for item in job.inputs] == [parse_where(WHERE)]


@pytest.mark.parametrize("operator", IGNORED)
def test_a_filter_that_would_change_nothing_is_refused_at_its_place(operator: str) -> None:
    text = dag(operator, IGNORED[operator])
    with pytest.raises(InvalidDag) as refusal:
        parsed(text)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.field) == ("not_for_this", "jobs[2].inputs[0].where")
    assert text.splitlines()[problem.line - 1][problem.column - 1 :].startswith("where:")
    assert operator in problem.reason
    assert "remove it" in (problem.suggestion or "")
    parsed(text.replace(f', where: "{WHERE}"', ""))


def test_a_filter_on_an_input_that_the_query_does_not_read_is_refused() -> None:
    text = dag("sql", HONOURED["sql"]).replace("}]\n", "}, {name: more, from: {job: ask}, where: {a: 1}}]\n")
    with pytest.raises(InvalidDag) as refusal:
        parsed(text)
    (problem,) = refusal.value.problems
    assert (problem.code, problem.field) == ("not_for_this", "jobs[2].inputs[1].where")
    assert "'more'" in problem.reason


@pytest.mark.parametrize("operator", IGNORED)
def test_a_file_that_was_deployed_before_can_still_be_read(operator: str) -> None:
    """A rollback to it must be possible; the filter still changes nothing."""
    assert parsed(dag(operator, IGNORED[operator]), replace(KNOWN, deployed=True))


def test_every_operator_is_one_of_these() -> None:
    assert set(specs()) == {*HONOURED, *IGNORED, *ELSEWHERE}
    narrow = {name for name, spec in specs().items() if spec.narrows is not None}
    assert narrow == {*HONOURED, "alert_evaluate"}
