"""Many completions with events and no outputs, in one statement: fenced, ended, told of, and their events routed.

Each event is stored with what routing it comes to, so between two tasks of a chain there is one commit, not two, and no
loop. Next: `outbox/publish_wake_ups.py` publishes the wake-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.dispatcher.events.route import HOLD
from tracelake.dispatcher.outbox.local_wake_ups import WakeUp
from tracelake.dispatcher.tasks.count_completions import count_plain
from tracelake.dispatcher.tasks.repeated_completion import answered_before
from tracelake.errors import Conflict, LeaseLost
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.output_messages import CompleteAnswer, CompleteRequest

log = structlog.get_logger()

PLAIN_ANSWER: Final = msgspec.to_builtins(CompleteAnswer(status="Completed"))
REFUSED: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.DeadlockDetectedError)
"""What may be wrong with a reader is not the fault of who completes: then the routing is owed, and tried by itself."""


@dataclass(frozen=True)
class Plain:
    """A completion for the batch."""

    request: CompleteRequest
    claims: Claims
    told: Sequence[NewEvent]
    hash: bytes


async def complete_plain(control: Control, batch: Sequence[Plain]) -> list[CompleteAnswer | Exception]:
    crash_point("complete_without_outputs.before_commit")
    rows, is_routed = await _complete_and_route(control, batch)
    crash_point("complete_without_outputs.after_commit")
    await _hand_on(control, batch, rows, is_routed=is_routed)
    current = {row["n"]: row for row in rows}
    found = [current.get(n) for n in range(1, len(batch) + 1)]
    await count_plain(control, batch, found)
    return [_answer(plain, row) for plain, row in zip(batch, found, strict=True)]


async def _complete_and_route(control: Control, batch: Sequence[Plain]) -> tuple[list[asyncpg.Record], bool]:
    if control.wake_ups is not None:
        try:
            return await _complete(control, batch, route=True), True
        except REFUSED as refusal:
            log.warning("events could not be routed with their completions", because=str(refusal), tasks=len(batch))
    return await _complete(control, batch, route=False), False


async def _complete(control: Control, batch: Sequence[Plain], *, route: bool) -> list[asyncpg.Record]:
    events = [(n, *told.columns) for n, plain in enumerate(batch, start=1) for told in plain.told]
    rows: list[asyncpg.Record] = await control.hot.fetch(
        queries("complete")["complete_plain"],
        route,
        control.replica,
        HOLD,
        [plain.request.task_id for plain in batch],
        [plain.request.attempt for plain in batch],
        [plain.request.lease_token for plain in batch],
        [plain.hash for plain in batch],
        [PLAIN_ANSWER for _ in batch],
        [plain.request.state for plain in batch],
        *transposed(events, 10),
    )
    return rows


async def _hand_on(
    control: Control, batch: Sequence[Plain], rows: Sequence[asyncpg.Record], *, is_routed: bool
) -> None:
    """What may start is published at once; of all else that may be due now, the drain is told."""
    made = [row for row in rows if row["n"] is None]
    wake_ups = [WakeUp(row["entry"], row["payload"]) for row in made if row["entry"] is not None]
    if control.wake_ups is not None:
        control.wake_ups.give(wake_ups)
        control.metrics.moved("new", "Queued", len(made))
    owes = not is_routed and any(plain.told for plain in batch)
    waits = len(wake_ups) < len(made)
    if owes or waits or await _frees_a_slot(control, {row["job_id"] for row in rows if row["n"] is not None}):
        control.outbox_signal.notify()


async def _frees_a_slot(control: Control, jobs: set[UUID]) -> bool:
    """Whether a task may be waiting for one of these jobs to have less in hand."""
    return any([(await control.jobs.get(job)).max_concurrency is not None for job in jobs])


def _answer(plain: Plain, row: asyncpg.Record | None) -> CompleteAnswer | Exception:
    if row is None:
        return LeaseLost("another attempt is the current one", where="/attempt", hint="stop, and report nothing")
    if row["open"]:
        return CompleteAnswer(status="Completed")
    try:
        return answered_before(row["status"], row["completion_hash"], row["answer"], plain.request, plain.hash)
    except (Conflict, LeaseLost) as refusal:
        return refusal
