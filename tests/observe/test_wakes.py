"""Replicas wake each other: nothing waits for a beat, except when the wire between them is cut, and then no longer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.support import ROOT
from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import claimed, completion
from tests.support.systems.walk import Walk, walking
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.listen import ListenForReplicas
from tracelake.dispatcher.signal import Signal
from tracelake.store.pool import BoundedPool

pytestmark = pytest.mark.anyio
AN_HOUR = 3600.0
"""A beat that no test waits for: what happens was woken."""


@asynccontextmanager
async def awake(state_db: str, queue_db: str, folder: Path) -> AsyncIterator[Walk]:
    """A Dispatcher that listens and whose loops have nothing to do for an hour."""
    async with walking(state_db, queue_db, folder, beat_seconds=AN_HOUR) as walk:
        await listens(walk)
        yield walk


@asynccontextmanager
async def mute(state_db: str, queue_db: str, folder: Path, *, connected: bool = True) -> AsyncIterator[Control]:
    """Another replica that can write and whose loops do not run."""
    async with control_for(state_db, queue_db, folder, replica="mute") as control:
        others = ListenForReplicas(control.pool, control.after_commit, control.replica)
        if connected:
            await others.start()
        try:
            yield control
        finally:
            await others.stop()


async def listens(walk: Walk) -> None:

    async def reached() -> bool:
        return await listener(walk) is not None and asleep(walk)

    await until(reached, "the Dispatcher listens and its loops sleep")


async def listener(walk: Walk) -> int | None:
    """The server process at the other end of a connection of this replica that listens."""
    found: int | None = await walk.control.pool.fetchval(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'trace test one'"
        " AND query LIKE 'LISTEN%'"
    )
    return found


def asleep(walk: Walk) -> bool:
    signals = (walk.control.after_commit.outbox, walk.control.after_commit.leases, walk.control.after_commit.sources)
    return all(signal._sleeps_until is not None for signal in signals)


async def test_work_of_a_replica_whose_loops_are_stopped_is_done_by_another_at_once(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with awake(state_db, queue_db, tmp_path) as walk, mute(state_db, queue_db, tmp_path) as other:
        await trigger(other, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Queued"])
        wait = walk.control.metrics.registry.get_sample_value(
            "trace_wakes_total", {"signal": "outbox", "direction": "received"}
        )
        assert wait


async def test_a_retry_that_another_replica_planned_is_not_slept_through(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with awake(state_db, queue_db, tmp_path) as walk, mute(state_db, queue_db, tmp_path) as other:
        await walk.control.pool.execute("UPDATE jobs SET retry_backoff_seconds = 1, retry_backoff_max_seconds = 1")
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Queued"])
        task_id: UUID = await walk.control.pool.fetchval("SELECT id FROM tasks")
        task, claims = await claimed(other, task_id)
        await other.completer()(completion(task, status="Failed", error_message="x"), claims)

        async def reached() -> bool:
            return bool(await walk.control.pool.fetchval("SELECT attempt FROM tasks") == 2)

        await until(reached, "the second attempt has begun")


async def test_a_lease_that_expires_before_the_next_planned_check_wakes_the_loop(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with awake(state_db, queue_db, tmp_path) as walk:
        await walk.control.pool.execute("UPDATE jobs SET heartbeat_timeout_seconds = 2, heartbeat_interval_seconds = 1")
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Queued"])
        await claimed(walk.control, await walk.control.pool.fetchval("SELECT id FROM tasks"))
        await walk.until("work", ["Failed"])


async def test_a_cut_connection_is_replaced_and_what_was_written_meanwhile_is_found(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    async with (
        awake(state_db, queue_db, tmp_path) as walk,
        mute(state_db, queue_db, tmp_path, connected=False) as silent,
    ):
        before, pool = await listener(walk), walk.control.pool
        assert isinstance(pool, BoundedPool)
        (cut,) = (connection for connection in pool._held if connection.get_server_pid() == before)
        await trigger(silent, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await silent.pool.execute("SELECT pg_terminate_backend($1)", before)
        await walk.until("work", ["Queued"])
        await listens(walk)
        assert await listener(walk) != before
        assert cut not in pool._held, "the connection that was cut is still counted as held"
        async with mute(state_db, queue_db, tmp_path) as other:
            await trigger(other, walk.org.id, "walk", "ask", cursor=2, request_id=uuid4())
            await walk.until("work", ["Queued", "Queued"])


async def test_the_page_names_every_signal_that_a_notification_may_carry(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "concepts" / "wake_ups.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"`NOTIFY trace_control, '(\w+)'` \(or ([^)]*)\)", page)
    async with walking(state_db, queue_db, tmp_path) as walk:
        assert {sentence[0], *re.findall(r"\w+", sentence[1])} == set(
            ListenForReplicas(walk.control.pool, walk.control.after_commit, walk.control.replica)._signals
        )


async def test_a_replica_that_does_its_own_work_notifies_no_other(state_db: str, queue_db: str, tmp_path: Path) -> None:
    async with awake(state_db, queue_db, tmp_path) as walk:
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        await walk.until("work", ["Queued"])
        walk.control.after_commit.outbox._check_loop()  # as if the time were up, whatever this machine is busy with
        notified = walk.control.metrics.registry.get_sample_value(
            "trace_wakes_total", {"signal": "outbox", "direction": "sent"}
        )
        assert notified is None


async def test_a_signal_without_a_waiter_notifies_other_replicas_once_for_many_calls() -> None:
    signal, notified = Signal(), list[int]()
    signal.notify_replicas(lambda: notified.append(1))
    for _ in range(100):
        signal.notify()
    await until(lambda: notified, "the notification has arrived")
    assert notified == [1]


async def test_a_signal_that_was_received_notifies_no_other_replica_and_a_wake_is_never_forwarded() -> None:
    signal, notified = Signal(), list[int]()
    signal.notify_replicas(lambda: notified.append(1))
    signal.notify()
    await signal.wait(AN_HOUR)
    signal._check_loop()
    signal.wake()
    await signal.wait(AN_HOUR)
    assert signal._check is None or not notified
    assert notified == []


async def test_what_falls_due_while_a_loop_works_shortens_its_next_sleep() -> None:
    signal = Signal()
    with signal.attended():
        signal.due_in(0.01)  # during a step: nothing to wake
        assert not signal._event.is_set()
        async with asyncio.timeout(SECONDS):
            await signal.wait(AN_HOUR)
        sleeper = asyncio.create_task(signal.wait(AN_HOUR))
        await asyncio.sleep(0)
        signal.due_in(2 * AN_HOUR)  # later than it wakes anyway
        assert not signal._event.is_set()
        signal.due_in(1)
        async with asyncio.timeout(SECONDS):
            await sleeper
