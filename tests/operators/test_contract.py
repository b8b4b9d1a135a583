"""What every operator relies on: pinned inputs, staged outputs, an immediate end, and no result after a lost lease."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.support.systems.operators import Numbers, OperatorSystem, numbers_dag, operator
from tests.support.systems.walk import working
from tests.support.verbs import cancel_task
from tests.support.waiting import SECONDS, until
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.wire.task.markers import decode_marker, marker_in

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("numbers")]

ONE_ATTEMPT = "max_attempts: 1, max_platform_failures: 1, heartbeat_interval_seconds: 1"
DAG = (
    numbers_dag(2)
    + """\
  - {name: work, operator: probe, inputs: [{from: {job: numbers}}]}
publish:
  numbers: {job: numbers}
  made: {job: work}
"""
)


def test_the_registry_needs_neither_spark_nor_arrow_nor_a_sql_parser() -> None:
    code = (
        "import sys; import tracelake.operators.registry as r; assert 'sql' in r.WORKER_OPERATORS;"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_an_input_is_read_at_the_commit_that_was_pinned_at_claim(
    system: OperatorSystem, numbers: Numbers
) -> None:
    held, go = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def probe(ctx: TaskContext[Any]) -> None:
        held.set()
        go.wait(SECONDS)
        seen.append([row.value for row in ctx.inputs[0].dataframe(whole=True).orderBy("block_number").collect()])
        for part in ctx.parts(ctx.outputs[0]):
            ctx.outputs[0].write(ctx.inputs[0].dataframe(), part)

    with operator("probe", probe):
        await system.deploy(DAG)
        async with working(system.worker()):
            await system.trigger("d", "ask", start=0, end=1)
            await asyncio.to_thread(held.wait, 60)
            numbers.value = lambda number: number * 1000
            await system.trigger("d", "ask", start=2, end=3)
            await system.until(
                "SELECT count(*) = 2 FROM commits c JOIN datasets d ON d.id = c.dataset_uuid WHERE d.name = 'numbers'"
            )
            go.set()
            await system.settled()
    assert sorted(seen) == [[0, 10], [0, 10, 2000, 3000]], "what came after the claim is not there"
    assert [(row["block_number"], row["value"]) for row in await system.rows("made")] == [
        (0, 0),
        (1, 10),
        (2, 2000),
        (3, 3000),
    ]


async def test_an_operators_refusal_is_the_tasks_error_with_its_hint(system: OperatorSystem) -> None:
    def probe(ctx: TaskContext[Any]) -> None:
        ctx.outputs[0].write(ctx.inputs[0].dataframe(), Range(0, 2))
        raise WorkFailed("the sea is high", hint="wait for the tide")

    with operator("probe", probe):
        await system.deploy(DAG)
        states = await system.run("d", "ask", start=0, end=1)
    assert states["work"] == ["Failed"]
    assert await system.error("work") == "the sea is high (wait for the tide)"
    assert await system.partitions("made") == [], "what it had staged does not count"


@pytest.mark.parametrize("how", ["canceled", "lease lost"])
async def test_spark_jobs_end_when_the_lease_of_their_task_is_lost(system: OperatorSystem, how: str) -> None:
    running = threading.Event()
    ended: list[float] = []

    def slowly(batches: Any) -> Any:
        for batch in batches:
            time.sleep(600)
            yield batch

    def probe(ctx: TaskContext[Any]) -> None:
        running.set()
        try:
            ctx.spark.range(2, numPartitions=2).mapInArrow(slowly, "id long").collect()
        finally:
            ended.append(time.monotonic())

    with operator("probe", probe):
        await system.deploy(DAG.replace("max_attempts: 2", ONE_ATTEMPT))
        async with working(replace(system.worker(), concurrency=2)):
            await system.trigger("d", "ask", start=0, end=1)
            await asyncio.to_thread(running.wait, 60)
            (row,) = await system.fetch("SELECT id FROM tasks WHERE status = 'Running'")
            if how == "canceled":
                await cancel_task(system.walk.control, system.walk.org.id, row["id"], "a test")
            else:
                taken = "UPDATE tasks SET lease_token = gen_random_uuid(), lease_expires_at = now() WHERE id = $1"
                await system.walk.control.pool.execute(taken, row["id"])
            await until(lambda: ended, "the task has ended")
            await system.settled()
    assert await system.partitions("made") == []


async def test_files_are_named_after_their_range_and_listed_in_the_marker(system: OperatorSystem) -> None:
    query = "SELECT block_number, value FROM numbers"
    await system.deploy(DAG.replace("operator: probe", f'operator: sql, config: {{query: "{query}", files: 2}}'))
    await system.run("d", "ask", start=0, end=9)
    for name, files in (("numbers", ["numbers_0_9"]), ("made", ["made_0_9_part0", "made_0_9_part1"])):
        (partition,) = await system.partitions(name)
        folder, objects = Folder.parse(partition["location"]), system.walk.control.objects
        marker = decode_marker(objects.get(marker_in(folder)))
        assert [file.name for file in marker.files] == [f"{stem}.parquet" for stem in files]
        assert sum(file.rows for file in marker.files) == 10
        for file in marker.files:
            body = objects.get(folder.object(file.name))
            assert (file.bytes, file.sha256) == (len(body), hashlib.sha256(body).hexdigest())
        assert [(column.name, column.type) for column in marker.columns] == [
            ("block_number", "bigint"),
            ("value", "bigint"),
        ]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (({"n": [1], "v": [1]}, {"n": [2], "v": ["x"]}), "(n bigint, v bigint) and (n bigint, v string)"),
        (({"n": [1]}, {"n": [2], "v": [2]}), "(n bigint) and (n bigint, v bigint)"),
        (({"v": [1], "V": [2]},), "v, V"),
    ],
)
async def test_all_partitions_of_a_completion_have_one_schema_that_can_be_read(
    system: OperatorSystem, tables: tuple[dict[str, Any], ...], message: str
) -> None:
    def probe(ctx: TaskContext[Any]) -> None:
        for start, table in enumerate(tables):
            ctx.outputs[0].write_table(pa.table(table), Range(start, start + 1))

    with operator("probe", probe):
        await system.deploy(DAG)
        states = await system.run("d", "ask", start=0, end=1)
    assert states["work"] == ["Failed"]
    assert message in await system.error("work")
    assert await system.partitions("made") == []


async def test_a_canceled_task_ends_its_own_spark_jobs_and_no_others(system: OperatorSystem, tmp_path: Path) -> None:
    """Two tasks in one session, each with a running Spark job, distinguished by their first block."""
    go, tasks, ended = tmp_path / "go", dict[int, UUID](), set[int]()

    def probe(ctx: TaskContext[Any]) -> None:
        (span,) = ctx.ranges(ctx.outputs[0])
        here = tmp_path / f"{span.start}.runs"

        def held(batches: Any) -> Any:
            for batch in batches:
                while not go.exists():
                    with here.open("a") as turns:
                        turns.write(".")
                    time.sleep(0.05)
                yield batch

        tasks[span.start] = ctx.task.task_id
        numbers = ctx.spark.range(1, numPartitions=1).mapInArrow(held, "id long")
        try:
            ctx.outputs[0].write(numbers, span)
        finally:
            ended.add(span.start)

    with operator("probe", probe):
        await system.deploy(DAG.replace("max_attempts: 2", ONE_ATTEMPT))
        async with working(system.worker()), asyncio.timeout(SECONDS):
            for start in (0, 10):
                await system.trigger("d", "ask", start=start, end=start + 1)
            await until(lambda: all((tmp_path / f"{start}.runs").exists() for start in (0, 10)), "both tasks run")
            await cancel_task(system.walk.control, system.walk.org.id, tasks[0], "a test")
            await until(lambda: ended, "the task has ended")
            turns = (tmp_path / "10.runs").stat().st_size
            await until(lambda: (tmp_path / "10.runs").stat().st_size >= turns + 3, "the other task goes on")
            assert ended == {0}
            go.touch()
            states = await system.settled()
    assert sorted(states["work"]) == ["Canceled", "Completed"]
    assert [item["partition_key"] for item in await system.partitions("made")] == ["10-11"]
