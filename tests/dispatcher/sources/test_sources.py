"""Always-on sources: one run each, kept alive under one id, and stopped on request; with two replicas."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.dispatcher.control import PULL, Org, deployed_and_active
from tests.support.dispatcher.sources import (
    DAG,
    OTHER_WORK,
    claim,
    end,
    jobs_with_source,
    later,
    lose,
    must_stop,
    settle,
    source,
)
from tests.support.verbs import pause_job, resume_job
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.keep_running import DRAIN_LIMIT, KeepSourcesRunning
from tracelake.dispatcher.sources.stop_all import drain_sources, release_sources
from tracelake.errors import NotFound
from tracelake.store.identity import User

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}


@pytest.fixture
def control(pair: tuple[Control, Control]) -> Control:
    return pair[0]


async def pause(control: Control, org: Org) -> None:
    await control.pool.execute(
        "INSERT INTO pauses (org_id, job_id, priority, reason, paused_by)"
        " SELECT $1, job_id, 'normal', 'manual', $2 FROM sources",
        org.id,
        org.user,
    )


async def test_a_source_is_started_with_one_long_task(control: Control, org: Org) -> None:
    done = await deployed_and_active(control, org, DAG)
    assert (await source(control))["state_text"] == "Pending"
    assert await KeepSourcesRunning(control.pool, control.after_commit).once() == 1
    row = await source(control)
    assert (row["state_text"], row["task_status"], row["timeout_seconds"]) == ("Running", "Queued", None)
    assert row["task_id"] == row["run_id"]
    key = await control.pool.fetchval("SELECT dedupe_key FROM tasks")
    assert key == f"source:{done.jobs['follow']}"
    assert await control.pool.fetchval("SELECT count(*) FROM outbox WHERE kind = 'enqueue_task'") == 1
    assert await KeepSourcesRunning(control.pool, control.after_commit).once() == 0


async def test_two_replicas_keep_exactly_one_run_alive(pair: tuple[Control, Control], org: Org) -> None:
    first, second = pair
    await deployed_and_active(first, org, DAG)
    for round_ in range(3):
        await asyncio.gather(
            *(
                KeepSourcesRunning(replica.pool, replica.after_commit).once()
                for replica in (first, second, first, second)
            )
        )
        assert await first.pool.fetchval("SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running')") == 1
        claimed = await claim(first)
        assert claimed.attempt == round_ + 1
        await lose(first)
        await asyncio.gather(
            *(KeepSourcesRunning(replica.pool, replica.after_commit).once() for replica in (first, second))
        )
        await later(first, 3600)
        await asyncio.gather(
            *(KeepSourcesRunning(replica.pool, replica.after_commit).once() for replica in (first, second))
        )
    assert await first.pool.fetchval("SELECT count(*) FROM tasks") == 1


async def test_missed_heartbeats_make_it_dead_then_pending_then_running_under_the_same_id(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    supervisor = KeepSourcesRunning(control.pool, control.after_commit)
    await supervisor.once()
    run = (await source(control))["run_id"]
    seen = []
    for _ in range(5):  # more often than max_attempts
        await claim(control)
        await lose(control)
        await supervisor.once()
        dead = await source(control)
        assert await supervisor.once() == 0  # it waits
        due = await supervisor.next_due()
        assert due is not None
        seen.append(round(due, -1))
        await later(control, 600)
        await supervisor.once()
        assert (await source(control))["state_text"] == "Pending"
        await supervisor.once()
        row = await source(control)
        assert (dead["state_text"], row["state_text"]) == ("Dead", "Running")
        assert "lease of attempt" in dead["last_error"]
    assert seen == [10, 20, 40, 80, 160]
    assert (row["run_id"], row["task_id"], row["attempt"], row["restarts"]) == (run, run, 6, 5)


async def test_a_source_that_ran_well_for_long_is_restarted_at_once_and_its_restart_count_is_reset(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    supervisor = KeepSourcesRunning(control.pool, control.after_commit)
    await supervisor.once()
    for lived, waits, restarts in ((0, 10, 1), (0, 20, 2), (15, 25, 3), (86_400, 0, 1), (0, 20, 2)):
        await claim(control)
        began = "UPDATE tasks SET started_at = last_heartbeat - make_interval(secs => $1)"
        await control.pool.execute(began, float(lived))
        await lose(control)
        await supervisor.once()
        due = await supervisor.next_due()
        assert due is not None
        assert due <= waits
        assert due > waits - 4 or waits == 0  # less by the time that the query took
        await later(control, waits)
        await supervisor.once()
        row = await source(control)
        assert (row["state_text"], row["restarts"]) == ("Pending", restarts)
        await supervisor.once()


@pytest.mark.parametrize("status", ["Completed", "Canceled", "Failed"])
async def test_a_source_that_ends_by_itself_is_started_again(control: Control, org: Org, status: str) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    first = await source(control)
    await end(control, await claim(control), status)
    await settle(control)
    assert (await source(control))["state_text"] == "Dead"
    await later(control, 60)
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["task_status"], row["run_id"]) == ("Running", "Queued", first["run_id"])
    assert (row["task_id"] == first["task_id"]) == (status == "Failed")


async def test_a_pause_drains_and_its_end_starts_again(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    assert not await must_stop(control, claimed)
    await pause(control, org)
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["drain_reason"]) == ("Draining", "pause")
    assert await must_stop(control, claimed)
    await end(control, claimed)
    await settle(control)
    assert (await source(control))["state_text"] == "Pending"
    await control.pool.execute("UPDATE pauses SET until = now()")
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["task_status"]) == ("Running", "Queued")


async def test_a_pause_that_ends_before_the_source_stopped_lets_it_go_on(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    await pause(control, org)
    await settle(control)
    await control.pool.execute("UPDATE pauses SET until = now()")
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["task_id"]) == ("Running", claimed.task.task_id)
    assert not await must_stop(control, claimed)


async def test_a_pause_cancels_a_task_that_is_not_claimed(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    await pause(control, org)
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["task_status"]) == ("Pending", "Canceled")


async def test_the_source_of_the_next_version_waits_until_the_former_has_stopped(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    second = await deployed_and_active(control, org, OTHER_WORK)
    old, new = first.jobs["follow"], second.jobs["follow"]
    assert await jobs_with_source(control) == {old: "Draining", new: "Pending"}
    await settle(control)
    assert await jobs_with_source(control) == {old: "Draining", new: "Pending"}
    assert await must_stop(control, claimed)
    assert (await end(control, claimed)).status == "Completed"  # it may say good-bye
    await settle(control)
    assert await jobs_with_source(control) == {new: "Running"}


async def test_a_source_that_was_not_claimed_yet_leaves_at_once(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    second = await deployed_and_active(control, org, OTHER_WORK)
    assert await jobs_with_source(control) == {second.jobs["follow"]: "Pending"}
    assert await control.pool.fetchval("SELECT status::text FROM tasks") == "Canceled"


async def test_there_and_back_again_the_source_runs_once(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    second = await deployed_and_active(control, org, OTHER_WORK)
    await deployed_and_active(control, org, DAG)
    await settle(control)
    # The old run still drains: no other run starts.
    assert await jobs_with_source(control) == {first.jobs["follow"]: "Draining"}
    await end(control, claimed)
    await settle(control)
    assert await jobs_with_source(control) == {first.jobs["follow"]: "Running"}
    assert await control.pool.fetchval("SELECT count(*) FROM tasks WHERE status = 'Queued'") == 1
    assert second.jobs["follow"] not in await jobs_with_source(control)


async def test_a_source_that_does_not_stop_is_canceled_and_one_that_vanished_is_gone(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    await deployed_and_active(control, org, DAG.replace("follow", "track"))
    await later(control, DRAIN_LIMIT.total_seconds())
    await settle(control)
    assert (
        await control.pool.fetchval("SELECT status::text FROM tasks WHERE id = $1", claimed.task.task_id) == "Canceled"
    )
    assert list((await jobs_with_source(control)).values()) == ["Running"]


async def test_a_shutdown_drains_and_the_next_start_goes_on(pair: tuple[Control, Control], org: Org) -> None:
    first, second = pair
    await deployed_and_active(first, org, DAG)
    supervisor = KeepSourcesRunning(first.pool, first.after_commit)
    await supervisor.once()
    claimed = await claim(first)
    assert await drain_sources(first.pool, first.after_commit) == 1
    assert await must_stop(first, claimed)
    await end(first, claimed)
    while await supervisor.once():
        pass
    assert (await source(first))["state_text"] == "Pending"
    await settle(second)  # nor does another replica start it
    assert (await source(second))["state_text"] == "Pending"
    before = (await source(second))["run_id"]
    await release_sources(second.pool, second.after_commit.sources)  # the next start
    await settle(second)
    row = await source(second)
    assert (row["state_text"], row["run_id"]) == ("Running", before)


async def test_a_drain_without_a_next_start_is_over_after_a_while(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await drain_sources(control.pool, control.after_commit)
    await settle(control)
    assert (await source(control))["state_text"] == "Pending"
    await control.pool.execute(
        "UPDATE source_drains SET since = since - interval '1 h', until = until - interval '1 h'"
    )
    await settle(control)
    assert (await source(control))["state_text"] == "Running"


async def test_a_manual_pause_survives_a_deploy(control: Control, org: Org) -> None:
    user = User(org.user, org.id, "acme", None, "admin")
    await deployed_and_active(control, org, DAG)
    await settle(control)
    assert (await pause_job(control, user, "feed", "follow")).changed
    assert not (await pause_job(control, user, "feed", "follow")).changed
    await settle(control)
    await deployed_and_active(control, org, OTHER_WORK)
    await settle(control)
    assert (await source(control))["state_text"] == "Pending"
    assert (await resume_job(control, user, "feed", "follow")).changed
    assert not (await resume_job(control, user, "feed", "follow")).changed
    await settle(control)
    assert (await source(control))["state_text"] == "Running"
    for dag, job in (("feed", "missing"), ("none", "follow")):
        with pytest.raises(NotFound):
            await pause_job(control, user, dag, job)
