"""Events that come with a plain completion are routed in its own commit, and their wake-ups go out at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain, drained, tasks_of
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.dispatch import EntryDispatcher
from tracelake.dispatcher.outbox.wake_ups import WakeUps

pytestmark = pytest.mark.anyio

QUEUE = "tasks-ecs_platform"


@pytest.fixture
async def control(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    async with control_for(state_db, queue_db, tmp_path, replica="here") as found:
        yield found


async def complete_with_event(control: Control, chain: Chain, **scope: int) -> None:
    """Completes a task of the first job with one event."""
    task, claims = await claimed(control, await a_task(control, chain))
    answer = await control.completer()(completion(task, events=[chain.event("first", **scope)]), claims)
    assert answer.status == "Completed"


def publishing(control: Control) -> WakeUps:
    """As a Dispatcher does it: wake-ups go out beside the drain."""
    assert control.wake_ups is not None
    publisher = EntryDispatcher(control.hot, control.queue, control.runtimes, control.replica)
    control.wake_ups.start(publisher, control.after_commit.outbox)
    return control.wake_ups


async def entries(control: Control) -> list[tuple[str, str]]:
    rows = await control.pool.fetch("SELECT kind::text, status::text FROM outbox ORDER BY 1")
    return [(row["kind"], row["status"]) for row in rows]


async def messages(control: Control, wait: int = 0) -> int:
    visibility = timedelta(minutes=5)
    return len(await control.queue.receive(QUEUE, max_messages=10, visibility=visibility, wait=timedelta(seconds=wait)))


async def blocked(control: Control) -> None:
    """Returns once a connection waits for a lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    await until(lambda: control.pool.fetchval(waits), "another connection waits for a lock")


async def test_the_reader_has_its_task_when_the_completion_is_accepted(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_event(control, chain, cursor=7)
    assert len(await tasks_of(control, chain, "second")) == 1
    assert await entries(control) == [("enqueue_task", "Processing"), ("route_event", "Done")]
    assert await control.pool.fetchval("SELECT count(*) FROM events WHERE routed_at IS NOT NULL") == 1


async def test_the_wake_up_goes_out_without_the_drain_and_is_marked_soon_after(control: Control) -> None:
    chain, wake = await deploy_chain(control), publishing(control)
    await complete_with_event(control, chain, cursor=7)
    assert await messages(control, wait=60) == 1
    await wake.stop()
    assert (await entries(control))[0] == ("enqueue_task", "Done")
    await drained(control)
    assert await messages(control) == 0


async def test_wake_ups_published_while_others_are_being_marked_are_marked_too(control: Control) -> None:
    chain, wake = await deploy_chain(control), publishing(control)
    await complete_with_event(control, chain, cursor=1)
    async with control.pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM outbox FOR UPDATE")
        assert await messages(control, wait=60) == 1
        await blocked(control)
        await complete_with_event(control, chain, cursor=2)
        assert await messages(control, wait=60) == 1
    await wake.stop()
    assert await entries(control) == [("enqueue_task", "Done")] * 2 + [("route_event", "Done")] * 2


async def test_the_same_event_from_two_completions_makes_one_task(control: Control) -> None:
    chain = await deploy_chain(control)
    for _ in range(2):
        await complete_with_event(control, chain, start=0, end=9)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1
    assert await messages(control) == 1


async def test_a_reader_that_can_have_no_task_keeps_no_completion_from_counting(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute(f"ALTER TABLE tasks ADD CONSTRAINT odd CHECK (job_id <> '{chain.jobs['second']}')")
    await complete_with_event(control, chain, cursor=7)
    assert await entries(control) == [("route_event", "Pending")]
    await control.drain().once()
    (row,) = await control.pool.fetch("SELECT attempts, last_error FROM outbox")
    assert row["attempts"] == 1
    assert "odd" in row["last_error"]
    await control.pool.execute("ALTER TABLE tasks DROP CONSTRAINT odd")
    await control.pool.execute("UPDATE outbox SET available_at = now()")
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1


async def test_wake_ups_of_a_dead_replica_are_published_by_another(
    control: Control, state_db: str, queue_db: str, tmp_path: Path
) -> None:
    chain = await deploy_chain(control)
    await complete_with_event(control, chain, cursor=7)  # passed to the publisher, which does not run
    async with control_for(state_db, queue_db, tmp_path, replica="there") as other:
        await drained(other)
        assert await messages(other) == 0, "its time has not run out"
        await control.pool.execute("UPDATE outbox SET taken_until = now() WHERE status = 'Processing'")
        await drained(other)
        assert await messages(other) == 1
    assert (await entries(control))[0] == ("enqueue_task", "Done")


async def test_a_generation_that_is_not_served_is_kept_for_the_record(control: Control) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute("DELETE FROM dag_current_versions")
    await complete_with_event(control, chain, cursor=7)
    assert await tasks_of(control, chain, "second") == []
    row: Any = await control.pool.fetchrow("SELECT disposition::text, routed_at FROM events")
    assert (row["disposition"], row["routed_at"]) == ("AuditOnly", None)
    assert await entries(control) == []


async def test_a_job_at_its_limit_lets_its_tasks_wait_and_the_drain_is_notified(control: Control) -> None:
    chain = await deploy_chain(control, max_concurrency=1)
    for cursor in (1, 2):
        await complete_with_event(control, chain, cursor=cursor)
    assert await entries(control) == [("route_event", "Done")] * 2
    await drained(control)
    assert await messages(control) == 1


async def test_a_completion_inside_a_transaction_leaves_routing_to_the_outbox(control: Control) -> None:
    chain = await deploy_chain(control)
    await complete_with_event(replace(control, wake_ups=None), chain, cursor=7)
    assert await entries(control) == [("route_event", "Pending")]
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1
