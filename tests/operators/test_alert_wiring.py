"""Jobs about alerts are refused at deploy with what is missing; the DAG of the documentation is accepted."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from tests.support import ROOT
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.alerts import COLUMNS, KEY
from tracelake.domain.dag.catalog import Catalog, PublishedDataset, RuntimeSpec
from tracelake.domain.dag.model import Dag
from tracelake.domain.dag.parse import parse_dag
from tracelake.errors import InvalidDag, Problem
from tracelake.operators.registry import specs
from tracelake.settings import RUNTIMES
from tracelake.wire.user.alerts import Severity

PAGE = (ROOT / "docs" / "how-to" / "raise_alerts.md").read_text(encoding="utf-8")
DAG = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0].replace("BUNDLE_SHA256", "0" * 64)


def parsed(text: str) -> Dag:
    runtimes = runtime_specs(RUNTIMES) | {"lambda": RuntimeSpec(untrusted=True)}
    published = {"transfers": PublishedDataset("chain")}
    return parse_dag(text, Catalog(specs(), runtimes, published, alerts=frozenset({"whales", "minnows"})))


def refused(text: str) -> Problem:
    (problem,) = all_refused(text)
    return problem


def all_refused(text: str) -> tuple[Problem, ...]:
    with pytest.raises(InvalidDag) as refusal:
        parsed(text)
    return refusal.value.problems


@pytest.mark.parametrize("runtime", ["lambda", "ecs_udf"])
def test_the_dag_of_the_page_can_be_deployed(runtime: str) -> None:
    dag = parsed(DAG.replace("runtime: lambda", f"runtime: {runtime}"))
    assert [(job.name, len(job.outputs)) for job in dag.jobs] == [("large_transfers", 1), ("route", 0)]
    (declared,) = dag.buffered
    assert declared.declaration.unique_key == KEY
    assert {column.name: column.type for column in declared.declaration.columns} == {
        name: kinds[0] for name, kinds in COLUMNS.items()
    }


@pytest.mark.parametrize("column", [name for name in COLUMNS if name not in KEY])
def test_a_missing_column_of_alert_events_is_named(column: str) -> None:
    text = re.sub(rf"      {column}: .*\n", "", DAG).replace("    indexes: [[block_number]]\n", "")
    # Both the job that writes them and the one that routes them are refused.
    with pytest.raises(InvalidDag) as refusal:
        parsed(text)
    assert {item.code for item in refusal.value.problems} == {"not_alert_events"}
    assert all(f"column {column!r}" in item.reason for item in refusal.value.problems)
    assert [item.field for item in refusal.value.problems] == ["jobs[0].outputs[0]", "jobs[1].inputs[0]"]


@pytest.mark.parametrize(
    ("was", "becomes", "reason"),
    [
        ("event_time: {type: timestamp, nullable: false}", "event_time: timestamp", "'event_time' needs nullable"),
        ("payload: json", "payload: text", "'payload' is text, not json"),
        ("unique_key: [alert_definition_id, dedupe_key]", "unique_key: [dedupe_key]", "unique_key is not"),
    ],
)
def test_alert_events_of_another_shape_are_refused(was: str, becomes: str, reason: str) -> None:
    with pytest.raises(InvalidDag) as refusal:
        parsed(DAG.replace(was, becomes))
    assert all(reason in item.reason for item in refusal.value.problems)


def test_an_output_that_is_no_declared_dataset_is_refused_with_what_to_write() -> None:
    output = "    outputs: [{dataset: alert_events}]\n"
    for other in ("", "    outputs: [{name: rows}]\n"):
        problems = all_refused(DAG.replace(output, other))
        (ours,) = (item for item in problems if item.code == "not_alert_events")
        assert "outputs: [{dataset: alert_events}]" in (ours.suggestion or "")


def test_an_undefined_alert_is_refused_with_a_suggestion() -> None:
    problem = refused(DAG.replace("[whales]", "[minnows, whale]"))
    assert (problem.code, problem.field, problem.suggestion) == (
        "unknown_alert",
        "jobs[0].config.definitions[1]",
        "did you mean whales?",
    )


def test_alert_evaluate_never_runs_on_trusted_workers() -> None:
    problems = all_refused(DAG.replace("runtime: lambda", "runtime: ecs_platform"))
    assert {item.code for item in problems} == {"runtime_not_allowed", "udf_on_trusted_runtime"}
    assert refused(re.sub(r"    udf: .*\n", "", DAG)).field == "jobs[0].udf"


def test_routing_takes_one_input_and_has_no_output() -> None:
    both = "inputs: [{from: {dataset: alert_events}, where: {severity: critical}}"
    assert "inputs" in refused(DAG.replace(both, both + ", {from: {dataset: transfers}}")).field
    route = "    operator: alert_route\n"
    assert "outputs" in refused(DAG.replace(route, route + "    outputs: [{name: x}]\n")).field


def test_the_severities_are_those_of_the_database() -> None:
    state = ROOT / "tracelake" / "store" / "migrations" / "state" / "0017_alerts.sql"
    found = re.search(r"CREATE TYPE alert_severity AS ENUM \((.*)\);", state.read_text())
    assert found is not None
    assert tuple(re.findall(r"'(\w+)'", found[1])) == get_args(Severity)
