"""Always-on sources: one run each, kept alive under one id, and stopped on request; with two replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.sources import (
    DAG,
    OTHER_WORK,
    claim,
    claim_of_job,
    emit,
    end,
    jobs_with_source,
    must_stop,
    settle,
    source,
)
from tests.support.dispatcher.staged_files import staged
from tests.support.operators import registered
from tests.support.verbs import pause_job, resume_job
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.keep_running import DRAIN_LIMIT, KeepSourcesRunning
from tracelake.dispatcher.sources.stop_all import drain_sources, release_sources
from tracelake.errors import InvalidRequest, LeaseLost, NotFound
from tracelake.store.identity import User
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.outputs import (
    EventBody,
    InvalidationBody,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[tuple[Control, Control]]:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path, replica="one") as first,
            control_for(state_db, queue_db, tmp_path, replica="two") as second,
        ):
            yield first, second


@pytest.fixture
def control(pair: tuple[Control, Control]) -> Control:
    return pair[0]


@pytest.fixture
async def org(control: Control) -> Org:
    return await an_org(control.pool)


async def lose(control: Control) -> None:
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await control.expire_leases().once()


async def later(control: Control, seconds: float) -> None:
    """As if so much time had passed for every source."""
    await control.pool.execute("UPDATE sources SET state_since = state_since - make_interval(secs => $1)", seconds)


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


BOOT = DAG.replace("source: {kind: always_on}", "source: {kind: always_on}, bootstrap: {reset_outputs: true}")


async def next_run(control: Control) -> Claimed:
    await lose(control)
    await settle(control)
    await later(control, 3600)
    await settle(control)
    return await claim(control)


def must_reset(claimed: Claimed) -> bool:
    return claimed.task.bootstrap is not None and claimed.task.bootstrap.reset_outputs


async def test_outputs_are_reset_until_the_first_event_and_never_again(control: Control, org: Org) -> None:
    first = await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim(control)
    assert must_reset(run)
    stale, run = run, await next_run(control)  # killed before it emitted anything
    assert must_reset(run)
    with pytest.raises(LeaseLost):
        await emit(control, stale, state={"at": 0})
    await emit(control, run)  # says nothing, so it says nothing about the reset
    run = await next_run(control)
    assert must_reset(run)
    await emit(control, run, state={"at": 1})
    run = await next_run(control)
    assert not must_reset(run)
    assert run.task.state == {"at": 1}
    # The next version does it once more; and on the way back the former one does not.
    await deployed_and_active(control, org, BOOT.replace("backoff: 10s", "backoff: 11s"))
    await end(control, run)
    await settle(control)
    run = await claim_of_job(control)
    assert must_reset(run)
    assert run.task.state is None  # what was remembered is of what is reset now
    await end(control, run, state={"at": 2})
    await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim_of_job(control)
    assert run.task.job.name == "follow"
    assert list(await jobs_with_source(control)) == [first.jobs["follow"]]
    assert not must_reset(run)


@pytest.mark.parametrize("with_outputs", [False, True])
async def test_a_completion_with_events_records_that_the_reset_was_done(
    control: Control, org: Org, *, with_outputs: bool
) -> None:
    await deployed_and_active(control, org, BOOT)
    await settle(control)
    run = await claim(control)
    await end(control, run)  # stopped before it began, say
    await settle(control)
    await later(control, 3600)
    await settle(control)
    run = await claim_of_job(control)
    assert must_reset(run)
    [out] = run.task.outputs
    named: dict[str, Any] = {"dataset_uuid": out.dataset_uuid, "dataset_version": out.dataset_version}
    outputs = staged(control.objects, run, (0, 9)) if with_outputs else []
    await end(control, run, events=[EventBody(**named, start=0, end=9)], outputs=outputs)
    await settle(control)
    await later(control, 3600)
    await settle(control)
    assert not must_reset(await claim_of_job(control))


async def test_state_is_saved_with_the_events_or_not_at_all(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    run = await claim(control)
    [out] = run.task.outputs
    good = EventBody(dataset_uuid=out.dataset_uuid, dataset_version=out.dataset_version, cursor=1)
    assert (await emit(control, run, events=[good], state={"at": 1})).accepted == 1
    with pytest.raises(InvalidRequest):
        await emit(control, run, events=[msgspec.structs.replace(good, start=3)], state={"at": 2})
    stale, run = run, await next_run(control)
    assert run.task.state == {"at": 1}
    with pytest.raises(LeaseLost):
        await emit(control, stale, state={"at": 3})
    assert (await next_run(control)).task.state == {"at": 1}


async def test_two_reorgs_of_one_range_are_two_by_their_cause_and_a_repeated_call_is_one(
    control: Control, org: Org
) -> None:
    await deployed_and_active(control, org, DAG)
    await settle(control)
    run = await claim(control)
    [out] = run.task.outputs
    body = InvalidationBody(
        dataset_uuid=out.dataset_uuid, dataset_version=out.dataset_version, start=5, end=7, reason="reorg", cause="0xaa"
    )
    other = msgspec.structs.replace(body, cause="0xbb")
    assert (await emit(control, run, invalidations=[body])).accepted == 1
    assert (await emit(control, run, invalidations=[body])).accepted == 0
    assert (await emit(control, run, invalidations=[other])).accepted == 1
    run = await next_run(control)  # the same task, another attempt: still the same reorg
    assert (await emit(control, run, invalidations=[body, other])).accepted == 0
    mixed = (
        msgspec.structs.replace(body, cause='0xaa", "x', reason="y"),
        msgspec.structs.replace(body, cause="0xaa", reason='x", "y'),
    )
    assert (await emit(control, run, invalidations=list(mixed))).accepted == 2


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


async def test_a_claim_carries_the_name_under_which_its_output_is_published_now(control: Control, org: Org) -> None:
    await deployed_and_active(control, org, DAG + "publish: {first_name: {job: follow}}\n")
    await settle(control)
    run = await claim(control)
    assert [output.name for output in run.task.outputs] == ["first_name"]
    await control.pool.execute("UPDATE datasets SET name = 'next_name' WHERE name = 'first_name'")
    run = await next_run(control)  # the job is known from before, its name is not
    assert [output.name for output in run.task.outputs] == ["next_name"]
    granted = decode(parse_token(run.capability_token).payload).datasets
    assert [item.name for item in granted if item.access == "write"] == ["next_name"]
