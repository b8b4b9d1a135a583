"""A query on Sail reads one snapshot: commits, promotions and the loops that delete files change nothing under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.support.dispatcher.releases import promoted, started, state_of
from tests.support.pause import paused
from tests.support.systems.query import QuerySystem
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.delete_replaced_files import DeleteReplacedFiles
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.domain.access.object_names import Folder
from tracelake.query.sail.connect import ConnectSession
from tracelake.query.sail.staged_files import StagedFiles

pytestmark = pytest.mark.anyio
MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: grind, operator: numbers, inputs: [{{from: {{job: ask}}}}]}}
  - name: bake
    operator: sql
    config: {{query: "SELECT block_number, value + {plus} AS loaves FROM grind"}}
    inputs: [{{from: {{job: grind}}}}]
publish:
  bread: {{job: bake}}
"""
SUM = "SELECT count(*) AS n, min(block_number) AS low, max(block_number) AS high, sum(loaves) AS total FROM bread"
DAYS = timedelta(days=7)
A_MONTH_PASSES = """
ALTER TABLE commits DISABLE TRIGGER commits_never_change;
UPDATE commits SET created_at = created_at - interval '31 days'
 WHERE dataset_version IN (SELECT v.id FROM dataset_versions v JOIN datasets d ON d.id = v.dataset_uuid
                            WHERE d.producer_dag_name = 'mill');
ALTER TABLE commits ENABLE TRIGGER commits_never_change;
UPDATE task_attempts a SET ended_at = ended_at - interval '31 days'
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN dag_versions v ON v.id = j.dag_version_id
 WHERE t.id = a.task_id AND v.dag_name = 'mill';
UPDATE dataset_versions v SET left_at = left_at - interval '31 days'
  FROM datasets d
 WHERE d.id = v.dataset_uuid AND d.producer_dag_name = 'mill' AND v.left_at IS NOT NULL
"""
FILES = """
SELECT p.location, f ->> 'name' AS name
  FROM datasets d
  JOIN dataset_versions v ON v.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = v.id,
       jsonb_array_elements(p.files) f
 WHERE d.name = 'bread'
"""


def total(plus: int, *numbers: int) -> list[list[Any]]:
    return [[len(numbers), min(numbers), max(numbers), sum(number * 10 + plus for number in numbers)]]


async def baked(system: QuerySystem, start: int, end: int) -> None:
    async with working(system.operators.worker()):
        await system.operators.trigger("mill", "ask", start, end)
        await system.operators.until(
            "SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'Done') AND NOT EXISTS"
            " (SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN dag_versions v ON v.id = j.dag_version_id"
            " WHERE v.dag_name = 'mill' AND t.status IN ('Queued', 'Running'))"
        )


async def built(system: QuerySystem, plus: int) -> UUID:
    """Build a release of other SQL, up to its promotion."""
    control, org = system.operators.walk.control, system.operators.walk.org
    release = await started(control, org, MILL.format(plus=plus))

    async def is_ready() -> bool:
        return await state_of(control, org, release) == "Ready"

    async with working(system.operators.worker()):
        await until(is_ready, "the release is ready")
    return release


async def remove_files(system: QuerySystem) -> None:
    """One pass of each loop that deletes files, with its usual limits."""
    control = system.operators.walk.control
    await DeleteReplacedFiles(control.pool, control.objects, DAYS).once()
    await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once()
    while await RemoveLeftGenerations(control.pool, control.objects, DAYS).once():
        pass


async def files(system: QuerySystem) -> set[str]:
    """The names of the dataset's files that are there."""
    objects = system.operators.walk.control.objects
    rows = await system.pool.fetch(FILES)
    folders = {row["location"] for row in rows}
    there = {str(item.name) for folder in folders for item in objects.objects(Folder.parse(folder))}
    return {str(Folder.parse(row["location"]).object(row["name"])) for row in rows} & there


async def test_a_running_query_reads_its_snapshot_while_files_are_replaced_promoted_away_and_deleted(
    system: QuerySystem, auto_system: QuerySystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    await system.operators.deploy(MILL.format(plus=1))
    await baked(system, 0, 9)
    first = await files(system)
    with paused(monkeypatch, StagedFiles, "using") as pause:  # it knows the names of its files, and has not read them
        asked = asyncio.create_task(auto_system.ask("reader", SUM))
        await pause.reached()
        await baked(system, 0, 9)
        await baked(system, 10, 14)
        await remove_files(system)
    await expect(asked, total(1, *range(10)))
    with paused(monkeypatch, ConnectSession, "rows") as pause:  # its files are staged, and Sail has not opened them
        asked = asyncio.create_task(auto_system.ask("reader", SUM))
        await pause.reached()
        release = await built(system, plus=1000)
        await promoted(system.operators.walk.control, system.operators.walk.org, release)
        former = await files(system)
        await system.pool.execute(A_MONTH_PASSES)
        await remove_files(system)
        assert first < former
        assert len(await files(system)) == 2, "those of the promoted generation"
    await expect(asked, total(1, *range(15)))
    await expect(auto_system.ask("reader", SUM), total(1000, *range(15)))


async def expect(asked: Awaitable[httpx.Response], rows: list[list[Any]]) -> None:
    answer = (await asked).json()
    assert (answer["engine"], answer["rows"]) == ("sail", rows), answer
