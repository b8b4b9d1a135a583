"""A task whose inputs, config and code are those of a completed one is completed with its files, and does not run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.memo import MILL, MILLS, SPANS, asked, content, ground, made_again, reused, tasks_of
from tests.support.dispatcher.releases import build, promoted, started, state_of
from tests.support.dispatcher.run_tasks import caught_up, settle
from tests.support.operators import register
from tests.support.verbs import invalidate
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.list_ledger import list_ledger
from tracelake.dispatcher.tasks.show import show_task
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.dispatcher.versions.start_backfill import start_backfill
from tracelake.dispatcher.why.explain import explain_task
from tracelake.query.verify.chain import check_chain
from tracelake.settings import LoopSettings
from tracelake.wire.user.backfills import BackfillRequest, GapsQuery
from tracelake.wire.user.ledger import LedgerQuery

pytestmark = pytest.mark.anyio

OPERATORS = {"works": WORKS, "mills": MILLS}

ALL = ["0-9", "10-19", "20-29", "30-39"]
UNCHANGED = ["0-9", "20-29", "30-39"]
SAME, SAME_TOO = 0, -1
"""Configs of `grind` with which it writes what it wrote before."""
LOST = """
CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'lost'; END $$;
CREATE CONSTRAINT TRIGGER lost AFTER INSERT ON commits DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION lose()
"""
CHANGES = """
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE partition_versions p SET content_hash = sha256('other')
      FROM jobs j, dag_version_datasets s, datasets d
     WHERE j.id = NEW.job_id AND s.dag_version_id = j.dag_version_id AND d.id = s.dataset_uuid AND d.name = 'flour'
       AND p.dataset_version = s.dataset_version AND p.partition_key = '10-19';
    RETURN NULL;
END $$;
CREATE TRIGGER change AFTER UPDATE OF woken_at ON tasks
    FOR EACH ROW WHEN (NEW.partitions = '{10-19}') EXECUTE FUNCTION change()
"""
LATER = """
UPDATE catch_ups c SET due_at = '2100-01-01' FROM jobs j WHERE j.id = c.job_id AND j.name = 'bake'
"""
"""Else `bake` is compared with its input again as soon as a second has passed."""
WAKE_UPS = "SELECT count(*) FROM outbox WHERE kind = 'enqueue_task' AND payload ->> 'task_id' = $1"


@pytest.fixture
async def org(control: Control) -> Org:
    """With a mill that has processed four ranges."""
    made = await an_org(control.pool, "mills")
    await deployed_and_active(control, made, MILL.format(1, 1))
    await asked(control, made, *SPANS)
    return made


async def test_after_an_edit_that_changes_one_partition_the_job_behind_it_runs_for_that_one(
    control: Control, org: Org
) -> None:
    release = await started(control, org, MILL.format(2, 1))
    await build(control, content=ground)
    assert await state_of(control, org, release) == "Ready"
    assert await reused(control, "grind") == [], "its config is another one"
    assert await reused(control, "bake") == UNCHANGED
    await promoted(control, org, release)
    assert await content(control, org, "bread") == [
        b"grain of 0-9, baked 1",
        b"grain of 10-19, 2 times, baked 1",
        b"grain of 20-29, baked 1",
        b"grain of 30-39, baked 1",
    ]
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete
    page = await list_ledger(control.pool, org.as_user, "bread", LedgerQuery())
    assert [len(page.entries), list(check_chain(page, 0))] == [8, []], "each has a commit, and the chain holds"
    assert control.metrics.memoized.labels(str(org.id), "mill", "bake")._value.get() == 3


async def test_users_see_whose_files_a_task_uses_and_no_worker_was_woken_for_it(control: Control, org: Org) -> None:
    await made_again(control, org)
    task = next(task for task in await tasks_of(control, "bake") if task["memoized_from"])
    original = next(other for other in await tasks_of(control, "bake") if other["key"] == task["key"])
    assert (task["memoized_from"], task["memo_key"]) == (original["id"], original["memo_key"])
    why = await explain_task(control.pool, org.id, task["id"])
    assert f"task {original['id']} wrote the same, and its files are used" in why.verdict
    assert [step.kind for step in why.steps] == ["rule", "task", "memo", "commit"]
    shown = await show_task(control.pool, org.id, task["id"])
    assert (shown.status, shown.memoized_from, len(shown.commits)) == ("Completed", original["id"], 1)
    assert await control.pool.fetchval(WAKE_UPS, str(task["id"])) == 0


async def test_an_edit_that_is_undone_after_its_generation_was_left_uses_all_that_is_there(
    control: Control, org: Org
) -> None:
    await made_again(control, org, grind=2)
    await made_again(control, org, grind=3)
    before = len(await reused(control, "bake"))
    await made_again(control, org, grind=1, bake=2)
    assert len(await reused(control, "bake")) == before, "no task of this job had this config"
    await made_again(control, org, grind=4, bake=2)
    assert (await reused(control, "bake"))[before:] == UNCHANGED
    assert (await content(control, org, "bread"))[::3] == [b"grain of 0-9, baked 2", b"grain of 30-39, baked 2"]


async def test_new_data_behind_files_of_others_is_processed_as_always(control: Control, org: Org) -> None:
    await made_again(control, org)
    await asked(control, org, (40, 49))
    assert (await content(control, org, "bread"))[-1] == b"grain of 40-49, baked 1"
    assert (await list_gaps(control.pool, org.as_user, GapsQuery(of="mill"))).complete


async def test_a_task_of_another_organisation_is_no_original(control: Control, org: Org) -> None:
    other = await an_org(control.pool, "others")
    await deployed_and_active(control, other, MILL.format(1, 1))
    await asked(control, other, *SPANS)
    assert [task["memoized_from"] for task in await tasks_of(control, "bake")] == [None] * 8
    keys = {task["memo_key"] for task in await tasks_of(control, "bake")}
    assert len(keys) == 4, "the same content has the same key in both"
    await control.pool.execute("UPDATE tasks SET memo_key = NULL WHERE org_id = $1", org.id)
    await made_again(control, org)
    assert await reused(control, "bake") == []


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE tasks SET memo_key = NULL",
        "UPDATE partition_versions SET content_hash = NULL WHERE valid_to IS NULL",
        "UPDATE jobs SET memo_hash = NULL",
    ],
)
async def test_without_a_key_or_a_known_content_every_task_runs(control: Control, org: Org, spoil: str) -> None:
    await control.pool.execute(spoil)
    await made_again(control, org)
    assert await reused(control, "bake") == []
    assert len(await content(control, org, "bread")) == 4


async def test_a_task_that_wrote_another_partition_than_its_own_is_no_original(control: Control, org: Org) -> None:
    bake = await tasks_of(control, "bake")
    key = bake[1]["memo_key"]
    # As if the task of 0-9 had read what the one of 10-19 did: its partition is still 0-9.
    await control.pool.execute("UPDATE tasks SET memo_key = NULL WHERE id = $1", bake[1]["id"])
    await control.pool.execute("UPDATE tasks SET memo_key = $2 WHERE id = $1", bake[0]["id"], key)
    await made_again(control, org, grind=SAME)
    assert await reused(control, "bake") == ["20-29", "30-39"]


async def test_with_changed_code_of_the_operator_every_task_runs(control: Control, org: Org) -> None:
    register("mills", replace(MILLS, code=2))
    await made_again(control, org, grind=SAME)
    assert await reused(control, "bake") == []
    await made_again(control, org, grind=SAME_TOO)
    assert await reused(control, "bake") == ALL


async def test_what_a_user_asks_for_again_runs(control: Control, org: Org) -> None:
    await made_again(control, org, grind=SAME)
    assert await reused(control, "bake") == ALL
    before = len(await tasks_of(control, "bake"))
    request = BackfillRequest(job="bake", start=0, end=39, again=True)
    await start_backfill(control.pool, control.after_commit.backfills, org.as_user, "mill", request)
    loop = RunBackfills(control.pool, control.after_commit, LoopSettings())
    while await loop.once():
        pass
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    assert await settle(control, content=ground) == 4
    span = {"start": 0, "end": 9, "reason": "reorg", "request_id": uuid4()}
    await invalidate(control, org.id, org.user, "flour", **span)
    assert await settle(control, content=ground) == 1
    assert [task["memoized_from"] for task in (await tasks_of(control, "bake"))[before:]] == [None] * 5


async def test_two_dispatchers_complete_each_task_once(
    control: Control, org: Org, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with control_for(state_db, queue_db, tmp_path, replica="two") as other:
        for n in (0, -1):
            await started(control, org, MILL.format(n, 1))
            for _ in range(4):
                await control.pool.execute("UPDATE catch_ups SET due_at = now()")
                await asyncio.gather(caught_up(control), caught_up(other))
                await settle(control, content=ground)
            await control.pool.execute("UPDATE releases SET state = 'Abandoned'")
            await control.pool.execute("UPDATE release_members SET builds = false")
    assert await reused(control, "bake") == ALL * 2
    commits = "SELECT count(*) FROM commits c JOIN tasks t ON t.id = c.task_id WHERE t.memoized_from IS NOT NULL"
    assert await control.pool.fetchval(commits) == 8


async def test_a_transaction_that_is_lost_at_its_end_leaves_nothing_and_is_repeated(control: Control, org: Org) -> None:
    await started(control, org, MILL.format(SAME, 1))
    await caught_up(control)
    await control.pool.execute(LATER)
    await settle(control, content=ground)
    before = await commits(control)
    await control.pool.execute(LOST)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    with pytest.raises(asyncpg.RaiseError, match="lost"):
        await caught_up(control)
    assert (await commits(control), await reused(control, "bake")) == (before, [])
    await control.pool.execute("DROP TRIGGER lost ON commits")
    await caught_up(control)
    assert (await commits(control), await reused(control, "bake")) == (before + 4, ALL)


async def test_what_was_read_is_another_commit_at_the_claim_so_the_task_runs(control: Control, org: Org) -> None:
    """The flour of one range changes between the look and the claim."""
    await started(control, org, MILL.format(SAME, 1))
    await caught_up(control)
    await control.pool.execute(LATER)
    await settle(control, content=ground)
    await control.pool.execute(CHANGES)
    await control.pool.execute("UPDATE catch_ups SET due_at = now()")
    await caught_up(control)
    assert await reused(control, "bake") == UNCHANGED
    waiting = [task["key"] for task in await tasks_of(control, "bake") if task["status"] == "Queued"]
    assert waiting == ["10-19"]


async def commits(control: Control) -> int:
    return int(await control.pool.fetchval("SELECT count(*) FROM commits"))
