"""Always-on sources: one run each, kept alive under one id, and stopped when told; with two replicas looking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tests.dispatcher.support import PULL, Org, an_org, control_for, deployed_and_active
from trace_platform.capability.claims import decode
from trace_platform.capability.jws import take_apart
from trace_platform.contracts import Claimed, ClaimRequest, CompleteAnswer, CompleteRequest, HeartbeatRequest
from trace_platform.dispatcher.catalog import registered
from trace_platform.dispatcher.claim_task import claim_tasks
from trace_platform.dispatcher.complete_task import Completer
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.loops.keep_sources import DRAIN_LIMIT, KeepSources
from trace_platform.dispatcher.loops.reap import Reaper
from trace_platform.store.queries import queries

pytestmark = pytest.mark.anyio

DAG = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - {name: follow, operator: pull, source: {kind: always_on}, retry: {backoff: 10s}}
  - {name: work, operator: pull, inputs: [{from: {job: follow}}]}
"""
OTHER_WORK = DAG.replace("name: work, operator: pull", "name: work, operator: pull, config: {n: 2}")


@pytest.fixture
async def pair(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[tuple[Control, Control]]:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path, replica="one") as one,
            control_for(state_db, queue_db, tmp_path, replica="two") as two,
        ):
            yield one, two


@pytest.fixture
def control(pair: tuple[Control, Control]) -> Control:
    return pair[0]


@pytest.fixture
async def org(control: Control) -> Org:
    return await an_org(control.pool)


async def source(control: Control) -> asyncpg.Record:
    [row] = await control.pool.fetch(
        "SELECT s.*, s.state::text AS state_text, t.status::text AS task_status, t.attempt, t.timeout_seconds"
        " FROM sources s LEFT JOIN tasks t ON t.id = s.task_id"
    )
    return row


async def settle(control: Control) -> None:
    keeper = KeepSources(control)
    while await keeper.once():
        pass


async def claim(control: Control) -> Claimed:
    [found] = await claim_tasks(control, [ClaimRequest(task_id=(await source(control))["task_id"], worker_id="w")])
    assert isinstance(found, Claimed)
    return found


async def lose(control: Control) -> None:
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await Reaper(control).once()


async def later(control: Control, seconds: float) -> None:
    """As if so much time had passed for every source."""
    await control.pool.execute("UPDATE sources SET state_since = state_since - make_interval(secs => $1)", seconds)


async def end(control: Control, claimed: Claimed, status: str = "Completed") -> CompleteAnswer:
    request = CompleteRequest(
        task_id=claimed.task.task_id,
        attempt=claimed.attempt,
        lease_token=claimed.lease_token,
        status=status,  # type: ignore[arg-type]
        error_message="broken" if status == "Failed" else None,
    )
    return await Completer(control)(request, decode(take_apart(claimed.capability_token).payload))


async def told_to_stop(control: Control, claimed: Claimed) -> bool:
    beat = HeartbeatRequest(task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token)
    [row] = await control.pool.fetch(
        queries("claim")["renew_leases"], [beat.task_id], [beat.attempt], [beat.lease_token], [None]
    )
    return bool(row["paused"] or row["draining"])


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
    assert await KeepSources(control).once() == 1
    row = await source(control)
    assert (row["state_text"], row["task_status"], row["timeout_seconds"]) == ("Running", "Queued", None)
    assert row["task_id"] == row["run_id"]
    key = await control.pool.fetchval("SELECT dedupe_key FROM tasks")
    assert key == f"source:{done.jobs['follow']}"
    assert await control.pool.fetchval("SELECT count(*) FROM outbox WHERE kind = 'enqueue_task'") == 1
    assert await KeepSources(control).once() == 0


async def test_two_replicas_keep_exactly_one_run_alive(pair: tuple[Control, Control], org: Org) -> None:
    one, two = pair
    await deployed_and_active(one, org, DAG)
    for round_ in range(3):
        await asyncio.gather(*(KeepSources(each).once() for each in (one, two, one, two)))
        assert await one.pool.fetchval("SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running')") == 1
        claimed = await claim(one)
        assert claimed.attempt == round_ + 1
        await lose(one)
        await asyncio.gather(*(KeepSources(each).once() for each in (one, two)))
        await later(one, 3600)
        await asyncio.gather(*(KeepSources(each).once() for each in (one, two)))
    assert await one.pool.fetchval("SELECT count(*) FROM tasks") == 1


async def test_missed_heartbeats_make_it_dead_then_pending_then_running_under_the_same_id(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    keeper = KeepSources(control)
    await keeper.once()
    run = (await source(control))["run_id"]
    seen = []
    for _ in range(5):  # more often than max_attempts
        await claim(control)
        await lose(control)
        await keeper.once()
        dead = await source(control)
        assert await keeper.once() == 0  # it waits
        due = await keeper.next_due()
        assert due is not None
        seen.append(round(due, -1))
        await later(control, 600)
        await keeper.once()
        assert (await source(control))["state_text"] == "Pending"
        await keeper.once()
        row = await source(control)
        assert (dead["state_text"], row["state_text"]) == ("Dead", "Running")
        assert "lease of attempt" in dead["last_error"]
    assert seen == [10, 20, 40, 80, 160]
    assert (row["run_id"], row["task_id"], row["attempt"], row["restarts"]) == (run, run, 6, 5)


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
    assert not await told_to_stop(control, claimed)
    await pause(control, org)
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["drain_reason"]) == ("Draining", "pause")
    assert await told_to_stop(control, claimed)
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
    assert not await told_to_stop(control, claimed)


async def test_a_pause_takes_back_what_nobody_has_claimed(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    await pause(control, org)
    await settle(control)
    row = await source(control)
    assert (row["state_text"], row["task_status"]) == ("Pending", "Canceled")


async def jobs_with_source(control: Control) -> dict[UUID, str]:
    rows = await control.pool.fetch("SELECT job_id, state::text AS state FROM sources")
    return {row["job_id"]: row["state"] for row in rows}


async def test_the_source_of_the_next_version_waits_until_the_former_has_stopped(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, DAG)
    await settle(control)
    claimed = await claim(control)
    second = await deployed_and_active(control, org, OTHER_WORK)
    old, new = first.jobs["follow"], second.jobs["follow"]
    assert await jobs_with_source(control) == {old: "Draining", new: "Pending"}
    await settle(control)
    assert await jobs_with_source(control) == {old: "Draining", new: "Pending"}
    assert await told_to_stop(control, claimed)
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
    # The old run still drains: nobody else starts.
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
    one, two = pair
    await deployed_and_active(one, org, DAG)
    keeper = KeepSources(one)
    await keeper.once()
    claimed = await claim(one)
    assert await keeper.drain() == 1
    assert await told_to_stop(one, claimed)
    await end(one, claimed)
    while await keeper.once():
        pass
    assert (await source(one))["state_text"] == "Pending"
    await settle(two)  # the next start, or another replica that stays
    assert (await source(two))["state_text"] == "Running"
