"""Operators of the workers on buffered datasets: SQL and Python write into one, others read it, by `where`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tests.support.systems.operators import Numbers, operator
from tests.support.systems.sink import SinkSystem, trigger_range
from tests.support.systems.walk import working
from tests.support.verbs import invalidate
from tracelake.domain.dag.catalog import Count
from tracelake.operators.api.context import Resources, TaskContext
from tracelake.operators.api.outcome import Outcome

pytestmark = pytest.mark.anyio

WRITERS = """
name: watch
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: fetch, operator: numbers, inputs: [{from: {job: ask}}]}
  - name: small
    operator: sql
    inputs: [{from: {job: fetch}, name: n}]
    outputs: [{dataset: alert_events}]
    config: {query: "SELECT concat('n', block_number) AS dedupe_key, 'low' AS severity, block_number FROM n"}
  - name: large
    operator: sql
    inputs: [{from: {job: fetch}, name: n}]
    outputs: [{dataset: alert_events}]
    config:
      query: >-
        SELECT concat('v', value) AS dedupe_key, 'high' AS severity, value AS block_number,
        '{"a": [1]}' AS payload, '7' AS amount FROM n WHERE value >= 50
publish:
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      dedupe_key: text
      severity: {type: text, nullable: false}
      block_number: bigint
      amount: uint256
      payload: json
    unique_key: [dedupe_key]
"""
READER = """
name: reader
defaults: {runtime: ecs_platform}
jobs:
  - {name: read, operator: look, inputs: [{from: {dataset: alert_events}, where: {severity: high}}]}
"""


async def test_sql_jobs_write_into_one_table_and_another_dag_reads_it_by_where(system: SinkSystem) -> None:
    seen: list[tuple[list[Any], list[Any]]] = []

    def look(ctx: TaskContext[Any]) -> Outcome | None:
        (input_,) = ctx.inputs
        new, everything = (
            sorted(row.dedupe_key for row in frame.collect())
            for frame in (input_.dataframe(), input_.dataframe(whole=True))
        )
        seen.append((new, everything))
        return None

    worker = system.walk.worker("one", spark=system.spark, resources=Resources(data_dsn=system.data_dsn))
    with operator("numbers", Numbers()), operator("look", look, outputs=Count(0, 1)):
        await system.deploy(WRITERS)
        await system.deploy(READER)
        async with system.sinking(), working(worker):
            await trigger_range(system, "ask", 0, 9)
            await system.until("SELECT count(*) = 2 FROM buffer_publishes WHERE status = 'Committed'")
            await system.walk.until("read", ["Completed", "Completed"])
    rows = await system.rows()
    assert {row["dedupe_key"] for row in rows} == {
        *(f"n{n}" for n in range(10)),
        *(f"v{n}" for n in range(50, 100, 10)),
    }
    assert {(str(row["amount"]), str(row["payload"])) for row in rows if row["severity"] == "high"} == {
        ("7", "{'a': [1]}")
    }
    high = [f"v{n}" for n in range(50, 100, 10)]
    new_keys = sorted(new for new, _ in seen)
    assert new_keys == [[], high], "each task is given what its own publish has set, as far as `where` lets it"
    assert high in [everything for _, everything in seen]


FUNCTIONS = """
name: watch
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: fetch, operator: numbers, inputs: [{from: {job: ask}}]}
  - name: function
    operator: python
    inputs: [{from: {job: fetch}, name: n}]
    outputs: [{dataset: alert_events}]
    config: {function: "tests.support.spark.functions:alerts", args: {prefix: p}}
""" + WRITERS[WRITERS.index("publish:") :]


async def test_a_python_function_writes_into_a_table_and_again_adds_nothing(system: SinkSystem) -> None:
    worker = system.walk.worker("one", spark=system.spark, resources=Resources(data_dsn=system.data_dsn))
    with operator("numbers", Numbers()):
        await system.deploy(FUNCTIONS)
        async with system.sinking(), working(worker):
            for end in (3, 5):  # the second range holds the first
                await trigger_range(system, "ask", 0, end)
                done = "SELECT count(*) = $1 FROM buffer_publishes WHERE status = 'Committed'"
                await system.until(done, 1 if end == 3 else 2)
            await system.walk.until("function", ["Completed", "Completed"])
    rows = await system.rows()
    assert [
        (row["dedupe_key"], row["severity"], row["block_number"], int(row["amount"]), row["payload"]) for row in rows
    ] == [(f"p{n}", "python", n * 10, n * 10, {"n": n}) for n in range(6)]
    tasks = {row["producer_task_id"]: row["publish_id"] for row in rows}
    assert len(tasks) == 2, "rows that were there already are still those of the first task"
    assert len({row["publish_id"] for row in rows[:4]}) == 1
    assert len(await system.fetch("SELECT FROM events WHERE origin = 'sink'")) == 2


BOTH_KINDS = FUNCTIONS.replace("outputs: [{dataset: alert_events}]", "outputs: [{dataset: alert_events}, {name: kept}]")


async def test_files_beside_a_table_are_made_again_in_whole_partitions(system: SinkSystem) -> None:
    """Whichever output is named first: a table has no partitions to go by."""
    worker = system.walk.worker("one", spark=system.spark, resources=Resources(data_dsn=system.data_dsn))
    text = BOTH_KINDS.replace(":alerts", ":alerts_twice") + "  kept: {job: function, output: kept}\n"
    text += "  fetched: {job: fetch}\n"
    control, org = system.walk.control, system.walk.org
    with operator("numbers", Numbers()):
        await system.deploy(text)
        async with system.sinking(), working(worker):
            await trigger_range(system, "ask", 0, 9)
            await system.walk.until("function", ["Completed"])
            dataset = await control.pool.fetchval("SELECT id FROM datasets WHERE name = 'fetched'")
            await invalidate(control, org.id, org.user, dataset, start=3, end=4, reason="a test", request_id=uuid4())
            await system.walk.until("function", ["Completed", "Completed"])
    partitions = await system.fetch(
        "SELECT p.partition_key, p.row_count, p.valid_to FROM partition_versions p"
        " JOIN datasets d ON d.id = p.dataset_uuid WHERE d.name = 'kept' ORDER BY p.valid_from"
    )
    assert [(row["partition_key"], row["row_count"], row["valid_to"]) for row in partitions] == [
        ("0-9", 10, 2),
        ("0-9", 10, None),
    ]
