"""Files that partitions of two generations name are deleted with the last of them, whoever deletes."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, deployed_and_active
from tests.support.dispatcher.memo import (
    MILL,
    MILLS,
    SPANS,
    asked,
    content,
    files,
    ground,
    made_again,
    reused,
    tasks_of,
)
from tests.support.dispatcher.run_tasks import caught_up, claim_one, drain, settle
from tests.support.dispatcher.staged_files import A_MONTH_PASSES, EIGHT_DAYS_PASS
from tests.support.verbs import invalidate
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.datasets.drop import drop_dataset
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.delete_replaced_files import DeleteReplacedFiles
from tracelake.dispatcher.maintenance.remove_left_generations import RemoveLeftGenerations
from tracelake.dispatcher.maintenance.retain import DeleteOldTasks
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.storage_locations import dataset_folder
from tracelake.query.verify.files import FileChecker
from tracelake.store.queries import queries
from tracelake.wire.user.ledger import LedgerQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS, "mills": MILLS}

SAME = 0
BREAD = [f"grain of {start}-{end}, baked 1".encode() for start, end in SPANS]
QUEUED_AGAIN = """
UPDATE tasks
   SET status = 'Queued', lease_token = NULL, worker_id = NULL, started_at = NULL, last_heartbeat = NULL,
       completed_at = NULL, outputs = NULL, completion_hash = NULL, completion_answer = NULL, memoized_from = NULL
 WHERE id = $1
"""
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: works, inputs: [{from: {dataset: bread}}]}
"""


@pytest.fixture
async def org(control: Control) -> Org:
    """With bread whose current generation uses the files of the former one."""
    made = await an_org(control.pool, "mills")
    await deployed_and_active(control, made, MILL.format(1, 1))
    await asked(control, made, *SPANS)
    await made_again(control, made, grind=SAME)
    assert len(await reused(control, "bake")) == len(SPANS)
    return made


def removes(control: Control) -> RemoveLeftGenerations:
    return RemoveLeftGenerations(control.pool, control.objects, timedelta(days=7))


def sweeps(control: Control) -> DeleteOrphanFiles:
    return DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket, timedelta(0))


def replaces(control: Control) -> DeleteReplacedFiles:
    return DeleteReplacedFiles(control.pool, control.objects, timedelta(days=30))


async def finished(loop: RemoveLeftGenerations | DeleteOrphanFiles | DeleteReplacedFiles) -> None:
    while await loop.once():
        pass


async def stored(control: Control) -> list[ObjectName]:
    """All objects of the bread, in whichever generation."""
    found = await control.pool.fetchval("SELECT id FROM datasets WHERE producer_job_name = 'bake'")
    org = await control.pool.fetchval("SELECT org_id FROM datasets WHERE id = $1", found)
    folder = dataset_folder(control.places.bucket, org, found)
    return [item.name for item in control.objects.objects(folder)]


async def test_the_former_generation_is_removed_and_its_files_stay_for_the_one_that_uses_them(
    control: Control, org: Org
) -> None:
    await control.pool.execute(EIGHT_DAYS_PASS)
    await finished(removes(control))
    await finished(sweeps(control))
    removed = "SELECT count(*) FROM removed_generations WHERE files_deleted_at IS NOT NULL"
    assert await control.pool.fetchval(removed) == 2
    assert await content(control, org, "bread") == BREAD
    assert len(await stored(control)) == 2 * len(SPANS), "with their markers"
    page = await list_ledger(control.pool, org.as_user, "bread", LedgerQuery())
    checker = FileChecker(control.objects, Path("/tmp"), threading.Event())  # noqa: S108 - nothing is written there
    damages = [checker.check(entry, rows=False).damages for entry in page.entries if not entry.generation_removed_at]
    assert damages == [[]] * len(SPANS)


async def test_files_in_the_folder_of_a_removed_generation_go_with_the_last_generation_that_uses_them(
    control: Control, org: Org
) -> None:
    await control.pool.execute(EIGHT_DAYS_PASS)
    await finished(removes(control))
    await made_again(control, org, grind=2, bake=2)
    await control.pool.execute(EIGHT_DAYS_PASS)
    await finished(removes(control))
    assert sorted(await stored(control)) == sorted(
        named
        for file in await files(control, org, "bread")
        for named in (file, Folder(file.bucket, file.segments[:-1]).object("_SUCCESS"))
    )


async def test_a_replaced_partition_keeps_its_files_while_another_generation_has_them(
    control: Control, org: Org
) -> None:
    shared = await files(control, org, "bread")
    await invalidate(control, org.id, org.user, "flour", start=0, end=9, reason="reorg", request_id=uuid4())
    await settle(control, content=ground)
    assert (await files(control, org, "bread"))[0] != shared[0], "it has run again"
    await control.pool.execute(A_MONTH_PASSES)
    await finished(replaces(control))
    assert control.objects.get(shared[0]) == BREAD[0], "the former generation has it"
    await control.pool.execute(EIGHT_DAYS_PASS)
    await finished(removes(control))
    await finished(replaces(control))
    assert shared[0] not in await stored(control)
    assert await content(control, org, "bread") == BREAD


async def test_a_partition_replaced_in_the_former_generation_keeps_its_files_for_the_one_that_uses_them(
    control: Control, org: Org
) -> None:
    former = "SELECT max(number) FROM commits c JOIN tasks t ON t.id = c.task_id WHERE t.memoized_from IS NOT NULL"
    last = await control.pool.fetchval(former)
    await control.pool.execute(
        "UPDATE partition_versions p SET valid_to = $1 FROM commits c JOIN tasks t ON t.id = c.task_id"
        " WHERE c.dataset_uuid = p.dataset_uuid AND c.number = p.valid_from AND t.memoized_from IS NULL"
        " AND p.dataset_uuid = (SELECT id FROM datasets WHERE name = 'bread')",
        last,
    )
    await control.pool.execute(A_MONTH_PASSES)
    await finished(replaces(control))
    await finished(sweeps(control))
    assert await content(control, org, "bread") == BREAD
    marked = "SELECT count(*) FROM partition_versions WHERE files_removed_at IS NOT NULL"
    assert await control.pool.fetchval(marked) == 0, "they are there, and are deleted when the other generation is"


async def test_a_dataset_that_is_dropped_leaves_no_file(control: Control, org: Org) -> None:
    dataset = await control.pool.fetchval("SELECT id FROM datasets WHERE name = 'bread'")
    await deactivate_dag(control.pool, control.after_commit, org.id, "mill")
    assert await stored(control)
    await drop_dataset(control.pool, org.as_user, str(dataset))
    await finished(removes(control))
    assert await stored(control) == []


async def test_old_tasks_are_kept_as_originals_as_long_as_their_partitions_are(control: Control, org: Org) -> None:
    await control.pool.execute("UPDATE tasks SET completed_at = completed_at - interval '1 year'")
    await DeleteOldTasks(control.pool, timedelta(days=30)).once()
    await made_again(control, org, grind=-1)
    assert len(await reused(control, "bake")) == 2 * len(SPANS)


@pytest.mark.usefixtures("org")
async def test_files_that_are_being_removed_are_not_used_and_files_in_use_are_not_removed(control: Control) -> None:
    task = (await tasks_of(control, "bake"))[-1]
    await control.pool.execute(QUEUED_AGAIN, task["id"])
    await control.pool.execute("DELETE FROM task_inputs WHERE task_id = $1", task["id"])
    originals = queries("reuse")["find_originals"], [task["id"]], {"mills": 1}
    async with control.pool.acquire() as looks, control.pool.acquire() as removing:
        async with removing.transaction():
            await removing.execute("SET LOCAL session_replication_role = replica")
            await removing.execute("UPDATE partition_versions SET valid_to = 1000")
            assert await looks.fetch(*originals) == []
        async with looks.transaction(), removing.transaction():
            assert len(await looks.fetch(*originals)) == 1
            await removing.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await removing.execute("DELETE FROM partition_versions WHERE location LIKE '%attempts%'")


async def test_the_token_of_a_reader_names_the_folders_that_hold_what_it_reads(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, SHOP)
    await drain(control)
    await caught_up(control)
    held = await claim_one(control)
    assert held is not None
    _, claims = held
    assert all(claims.grants.storage.may_read(name) for name in await files(control, org, "bread"))
    assert not any(claims.grants.storage.may_read(name) for name in await files(control, org, "flour"))
