"""A field that has no effect is warned of at its place, or refused; one that has an effect is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.parse import parse_dag
from tracelake.errors import InvalidDag
from tracelake.settings import RUNTIMES

CATALOG = Catalog(operators(), runtime_specs(RUNTIMES))
DAG = """\
name: d
defaults: {runtime: ecs_platform%s}
jobs:
  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}%s}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 5}, inputs: [{from: {job: load}}]%s}
  - {name: sum, operator: sql, config: {query: SELECT a FROM cut}, inputs: [{from: {job: cut}}], outputs: [%s]%s}
publish: {rows: {storage: postgres, write_mode: buffered, columns: {a: text}, unique_key: [a]}}
"""


def dag(*, defaults: str = "", load: str = "", cut: str = "", output: str = "{dataset: rows}", total: str = "") -> str:
    given = [f", {item}" if item else "" for item in (defaults, load, cut, total)]
    return DAG % (*given[:3], output, given[3])


PYTHON = "operator: python, config: {function: m:f, files: 4}"


def warned(text: str) -> list[tuple[int, str, str]]:
    return [(warning.line, warning.field, warning.code) for warning in parse_dag(text, CATALOG).warnings]


def test_a_key_is_compared_with_the_one_of_the_buffered_dataset_that_is_written() -> None:
    assert warned(dag(total="update_strategy: append, unique_key: [a]")) == []
    with pytest.raises(InvalidDag, match="'rows' are identified by a"):
        parse_dag(dag(total="update_strategy: append, unique_key: [b]"), CATALOG)
    parse_dag(dag(total="unique_key: [b]"), replace(CATALOG, deployed=True))  # it was accepted once, and runs


def test_a_strategy_is_warned_of_where_the_dataset_has_another() -> None:
    assert warned(dag(output="own", total="unique_key: [a]")) == [], "comparisons match rows by it"
    assert warned(dag(total="update_strategy: replace")) == [(6, "jobs[2].update_strategy", "no_effect")]
    assert warned(dag(output="own", total="update_strategy: replace")) == []


def test_one_task_for_each_partition_is_warned_of_where_each_reads_all_partitions() -> None:
    full = dag(output="own", total="execution_strategy: PerPartition").replace("FROM cut}", "FROM cut, mode: full}")
    assert warned(full) == [(6, "jobs[2].execution_strategy", "no_effect")]


OF_TASKS = (
    "timeout_seconds: 5",
    "max_attempts: 2",
    "max_platform_failures: 2",
    "retry: {backoff: 1s}",
    "bootstrap: {}",
)


@pytest.mark.parametrize("given", OF_TASKS)
def test_a_manual_source_runs_no_task_and_what_is_said_of_tasks_is_warned_of(given: str) -> None:
    assert warned(dag(load=given)) == [(4, f"jobs[0].{given.partition(':')[0]}", "no_effect")]


OF_LEASES = ("timeout_seconds: 5", "heartbeat_interval_seconds: 9", "max_platform_failures: 2")


@pytest.mark.parametrize("given", [*OF_LEASES, "scaling: {max_concurrency: 2}"])
def test_a_task_of_the_dispatcher_has_no_lease_and_runs_alone_and_what_is_said_of_it_is_warned_of(given: str) -> None:
    assert warned(dag(cut=given)) == [(5, f"jobs[1].{given.partition(':')[0]}", "no_effect")]
    assert warned(dag(cut="max_attempts: 2")) == []


FOLLOW = """\
name: d
defaults: {runtime: ecs_platform, max_attempts: 5}
jobs:
  - {name: follow, operator: block_follower, source: {kind: always_on}, config: {rpc_pool: dev, start_block: 0},
     outputs: [blocks, transactions, logs, final], %s}
"""


@pytest.mark.parametrize("given", ["max_attempts: 2", "max_platform_failures: 2", "scaling: {max_concurrency: 2}"])
def test_an_always_on_source_is_one_task_that_is_restarted_and_limits_of_tasks_are_warned_of(given: str) -> None:
    assert warned(FOLLOW % given) == [(5, f"jobs[0].{given.partition(':')[0]}", "no_effect")]


def test_how_an_always_on_source_is_restarted_is_not_warned_of() -> None:
    assert warned(FOLLOW % "retry: {backoff: 1s}, heartbeat_timeout_seconds: 60") == []


@pytest.mark.parametrize(
    "given",
    [
        "priority: normal",
        "priority: bulk",
        "idle_timeout: never",
        "idle_timeout: 5m",
        "execution_strategy: PerUpdate",
        "execution_strategy: PerPartition",
        "timeout_seconds: 5",
    ],
)
def test_what_has_an_effect_or_asks_for_what_happens_anyway_is_not_warned_of(given: str) -> None:
    assert warned(dag(total=given)) == warned(dag(defaults=given)) == []


def test_a_replay_is_warned_of_where_there_is_nothing_to_repeat() -> None:
    assert warned(dag(total="replay: true")) == [], "it writes a buffered dataset"
    assert warned(dag(output="own", total="replay: true")) == [(6, "jobs[2].replay", "no_effect")]
    assert warned(dag(cut="replay: true")) == [(5, "jobs[1].replay", "no_effect")]
    assert warned(dag(load="replay: true")) == [(4, "jobs[0].replay", "no_effect")]


@pytest.mark.parametrize("operator", ["operator: sql, config: {query: SELECT a FROM cut, files: 4}", PYTHON])
def test_how_many_files_is_warned_of_where_all_rows_go_to_the_sink(operator: str) -> None:
    job = "  - {name: sum, %s, inputs: [{from: {job: cut}}], outputs: [%s]}\n"
    text = DAG.replace(DAG.splitlines(keepends=True)[5], job) % ("", "", "", operator, "%s")
    assert warned(text % "{dataset: rows}") == [(6, "jobs[2].config.files", "no_effect")]
    assert warned(text % "own") == []
    if operator is PYTHON:
        assert warned(text % "own, {dataset: rows}") == []


def test_the_input_of_a_sql_check_is_warned_of_because_the_query_names_it() -> None:
    checks = "[{kind: row_count, min: 1, input: cut}, {kind: sql, query: SELECT a FROM cut, input: cut}]"
    job = f"  - {{name: check, operator: quality, config: {{checks: {checks}}}, inputs: [{{from: {{job: cut}}}}]}}\n"
    assert warned(dag().replace("publish:", f"{job}publish:")) == [(7, "jobs[3].config.checks[1].input", "no_effect")]


def test_confirmations_are_warned_of_where_no_output_gets_the_final_ranges() -> None:
    text = FOLLOW.replace("start_block: 0", "confirmations: 9") % "max_queue_depth: 1"
    assert warned(text)[0][1] == "jobs[0].max_queue_depth"
    assert (4, "jobs[0].config.confirmations", "no_effect") in warned(text.replace(", final", ""))


def test_a_nullable_column_of_a_key_is_warned_of() -> None:
    assert warned(dag().replace("{a: text}", "{a: {type: text, nullable: false}}")) == []
    found = warned(dag().replace("{a: text}", "{a: {type: text, nullable: true}}"))
    assert found == [(7, "publish.rows.columns.a.nullable", "no_effect")]


READ = """\
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: read, operator: read_files, inputs: [{from: {job: load}}], config: {path: a, %s}}
"""


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("given", ["header: false", 'delimiter: ";"'])
def test_what_is_said_of_csv_is_warned_of_where_other_files_are_read(form: str, given: str) -> None:
    assert warned(READ % f"format: csv, {given}") == []
    found = warned(READ % f"format: {form}, {given}")
    assert found == [(5, f"jobs[1].config.{given.partition(':')[0]}", "no_effect")]


def test_how_long_rows_stay_is_warned_of_where_none_are_deleted() -> None:
    tables = "[{from: {job: follow, output: final}}, {from: {job: follow, output: blocks}, trigger: false}]"
    compact = f"  - {{name: pack, operator: parquet_compact, inputs: {tables}, config: {{tables: [blocks], %s}}}}\n"
    text = FOLLOW.replace("[blocks, transactions, logs, final], %s", "[blocks, final]")
    text = text.replace("{rpc_pool: dev", "{tables: [blocks], rpc_pool: dev") + compact
    assert warned(text % "grace_seconds: 9") == []
    found = warned(text % "grace_seconds: 9, delete_after_compact: false")
    assert found == [(6, "jobs[1].config.grace_seconds", "no_effect")]


def test_a_version_with_a_schedule_that_was_deployed_before_can_still_be_activated() -> None:
    config = "config: {path: a, format: csv}"
    text = f"name: d\njobs:\n  - {{name: a, operator: read_files, runtime: ecs_platform, {config}, source: %s}}\n"
    assert parse_dag(text % '{kind: cron, schedule: "0 0 * * *"}', replace(CATALOG, deployed=True)).jobs
