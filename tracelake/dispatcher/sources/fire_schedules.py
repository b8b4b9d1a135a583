"""Decides the slots of cron sources that are due: each fires once, or is recorded with a reason. Next: step 3.

The scheduler calls it (`scheduler/process.py`); any number of schedulers and Dispatchers may. The row of a schedule is
locked while its slots are decided, and a slot's identity is its nominal time: it is stored once, with the task or the
events that it makes, in one transaction. The clock is that of Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.operators import makes_task
from tracelake.domain.sources.decide_slots import Decision, Overlap, Rules, ScheduleState, decide_slots, delay_of
from tracelake.domain.sources.schedule import Dst, Schedule
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, fetch_column, fetch_row, fetch_rows, queries
from tracelake.wire.internal.sources import FiredAnswer

BATCH = 100
AFTER_FAILURE = timedelta(minutes=1)

log = structlog.get_logger()


class DueSchedule(Row, frozen=True):
    job_id: UUID
    org_id: UUID
    dag_name: str
    job_name: str
    operator: str
    source: str
    decided_until: datetime
    now: datetime
    paused: bool
    open_tasks: int
    failed_task: UUID | None


class StoredSlots(Row, frozen=True):
    fired: int
    stored: int


class CronSource(msgspec.Struct, frozen=True):
    """`jobs.source` of a cron source. A version from before some fields has their defaults."""

    schedule: str
    tz: str = "UTC"
    dst: Dst = Dst.RUN_AFTER
    overlap: Overlap = Overlap.SKIP
    catch_up_seconds: int | None = None
    jitter_seconds: int = 0
    pause_on_failure: bool = False

    def rules(self, dag: str, job: str) -> Rules:
        return Rules(
            Schedule(self.schedule, self.tz, self.dst),
            self.overlap,
            None if self.catch_up_seconds is None else timedelta(seconds=self.catch_up_seconds),
            delay_of(f"{dag}.{job}", self.jitter_seconds),
        )


async def fire_schedules(pool: asyncpg.Pool, after: AfterCommit) -> FiredAnswer:
    """Decides what is due. The answer says how long to wait until the next slot, and from which mark on for changes."""
    mark = after.schedules.mark
    fired = decided = 0
    while (step := await _fire_batch(pool)) is not None:
        fired, decided = fired + step.fired, decided + step.stored
        if step.fired:
            after.outbox.notify()
    wait: float | None = await pool.fetchval(queries("schedules")["next_due"])
    next_in = None if wait is None else max(wait, 0.0)
    return FiredAnswer(fired=fired, decided=decided, next_in_seconds=next_in, mark=mark)


async def _fire_batch(pool: asyncpg.Pool) -> StoredSlots | None:
    """None: nothing is due, or others decide it."""
    sql = queries("schedules")
    async with pool.acquire() as connection, connection.transaction():
        orgs = await fetch_column(connection, sql["lock_due"])
        due = await fetch_rows(connection, sql["take_due"], DueSchedule, orgs, BATCH) if orgs else []
        if not due:
            return None
        await _pause_failed(connection, due)
        stored = await _store(connection, [(schedule, _decide(schedule)) for schedule in due])
        crash_point("fire_schedules.before_commit")
    crash_point("fire_schedules.after_commit")
    return stored


def _decide(due: DueSchedule) -> Decision:
    """A schedule that cannot be decided, because its time zone is gone from this system, say, does not stop others."""
    try:
        return _decided(due)
    except Exception:
        log.exception("a schedule cannot be decided", dag=due.dag_name, job=due.job_name)
        return Decision((), due.decided_until, due.now + AFTER_FAILURE)


def _decided(due: DueSchedule) -> Decision:
    source = _source(due)
    rules = source.rules(due.dag_name, due.job_name)
    if not makes_task(due.operator):  # events do not overlap
        rules = replace(rules, overlap=Overlap.ALLOW)
    paused = due.paused or (source.pause_on_failure and due.failed_task is not None)
    return decide_slots(rules, ScheduleState(due.now, due.decided_until, paused, due.open_tasks))


async def _pause_failed(connection: Connection, due: Sequence[DueSchedule]) -> None:
    """Sources with `pause_on_failure`, before the slot after the failure; a user resumes them."""
    failed = [item for item in due if item.failed_task is not None and _source(item).pause_on_failure]
    if failed:
        columns = [item.job_id for item in failed], [item.failed_task for item in failed]
        await connection.execute(queries("schedules")["pause_failed"], *columns)


def _source(due: DueSchedule) -> CronSource:
    return msgspec.json.decode(due.source, type=CronSource)


async def _store(connection: Connection, decisions: Sequence[tuple[DueSchedule, Decision]]) -> StoredSlots:
    sql = queries("schedules")
    slots = [(due, slot) for due, decision in decisions for slot in decision.slots]
    columns: tuple[list[Any], ...] = (
        [due.job_id for due, _ in slots],
        [slot.at for _, slot in slots],
        [slot.reason for _, slot in slots],
        [makes_task(due.operator) for due, _ in slots],
    )
    stored = await fetch_row(connection, sql["store_slots"], StoredSlots, *columns)
    await connection.execute(
        sql["decided"],
        [due.job_id for due, _ in decisions],
        [decision.decided_until for _, decision in decisions],
        [decision.next_due for _, decision in decisions],
    )
    return stored
