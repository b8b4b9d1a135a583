"""Tasks of `runtime: dispatcher`: claimed, run and completed here, by the same verbs as a worker's.

Some tasks of one job are one transaction, from claim to completion, so they happened or they did not: no lease can run
out in between, and a replica that dies leaves them Queued and their entries pending. The transaction begins with a lock
on the job: the state that a claim returns is the state that the completion replaces, whichever replica runs its tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.capability.log_context import task_fields
from tracelake.dispatcher.tasks.claim import Claimer
from tracelake.dispatcher.tasks.completion.complete import Completer
from tracelake.dispatcher.tasks.completion.complete_batch import complete_in_transaction
from tracelake.dispatcher.tasks.completion.completion import Completion, read_completion
from tracelake.domain.task import TaskState
from tracelake.errors import BadInput, Refused, Unavailable
from tracelake.operators.registry import IN_PROCESS
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.runtime.logs import log_fields
from tracelake.runtime.tracing import span
from tracelake.store.queries import Connection, Row, fetch_rows, queries
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, TaskPayload
from tracelake.wire.task.outputs import CompleteRequest

log = structlog.get_logger()

LOCK_SECONDS = 5
"""How long to wait for another replica to finish a task of the same job."""


BATCH = 50
"""Tasks in one transaction: enough to pay its price once for many, few enough to be done within milliseconds."""
REFUSALS = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, BadInput, Refused)


@dataclass(frozen=True)
class Ran:
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    """Not to be claimed any more: done, canceled, in other hands, or of a version that left."""

    def __add__(self, other: Ran) -> Ran:
        return Ran(self.completed + other.completed, self.failed + other.failed, self.skipped + other.skipped)


class TaskOfJob(Row, frozen=True):
    id: UUID
    job_id: UUID


async def run_in_process(claimer: Claimer, completer: Completer, task_ids: Sequence[UUID]) -> Ran:
    """Raises Unavailable if another replica holds a job for long: the tasks that have not run stay Queued."""
    asked = list(dict.fromkeys(task_ids))
    jobs: dict[UUID, list[UUID]] = {}
    for task in await fetch_rows(completer.database, queries("in_process")["jobs_of"], TaskOfJob, asked):
        jobs.setdefault(task.job_id, []).append(task.id)
    ran = Ran(skipped=len(asked) - sum(map(len, jobs.values())))
    try:
        for tasks in jobs.values():
            for first in range(0, len(tasks), BATCH):
                ran += await _run_some(claimer, completer, tasks[first : first + BATCH])
    finally:
        completer.announcer.after.outbox.notify()  # after the commits: the loop must see what was written
    return ran


async def _run_some(claimer: Claimer, completer: Completer, tasks: Sequence[UUID]) -> Ran:
    """Together; if the database refuses what comes of it, one by one, so that only the bad one fails."""
    try:
        return await _run_together(claimer, completer, tasks)
    except REFUSALS as refusal:
        if len(tasks) == 1:
            return await _give_up(claimer, completer, tasks[0], f"its outcome was refused: {refusal}")
    ran = Ran()
    for task in tasks:
        ran += await _run_some(claimer, completer, [task])
    return ran


async def _give_up(claimer: Claimer, completer: Completer, task: UUID, error: str) -> Ran:
    try:
        return await _run_together(claimer, completer, [task], error)
    except REFUSALS:
        log.exception("a task can be neither run nor failed", task=str(task), because=error)
        return Ran(failed=1)


async def _run_together(claimer: Claimer, completer: Completer, tasks: Sequence[UUID], error: str | None = None) -> Ran:
    """Tasks of one job, in order, each with the state that the one before it left; completed as one batch."""
    options = completer.options
    async with completer.database.acquire() as connection, connection.transaction():
        await _lock_job(connection, tasks[0])
        if not await connection.fetchval(queries("in_process")["serves"], tasks[0]):
            return Ran(skipped=len(tasks))  # made for a version in the moment it left: `retire_tasks` finds them
        claims = await _claim(claimer, f"dispatcher {options.replica}", connection, tasks)
        batch = [item async for item in _run_all(completer.objects, claims, error)]
        own = replace(options, jobs=options.jobs.through(connection), routes=False)
        result = await complete_in_transaction(connection, batch, own)
        for refusal in result.answers:
            if isinstance(refusal, Exception):
                raise refusal
        crash_point("run_in_process.before_commit")
    crash_point("run_in_process.after_commit")
    completer.announcer.announce(result)
    completed = sum(completion.ends_as is TaskState.COMPLETED for completion in batch)
    return Ran(completed, len(batch) - completed, skipped=len(tasks) - len(batch))


async def _run_all(objects: ObjectStore, claims: Sequence[Claimed], error: str | None) -> AsyncIterator[Completion]:
    state = None
    for claimed in claims:
        task = claimed.task if state is None else msgspec.structs.replace(claimed.task, state=state)
        request = _run(claimed, task) if error is None else _failed(claimed, error, retryable=False)
        state = request.state or state
        yield await read_completion(objects, request, decode(parse_token(claimed.capability_token).payload))


async def _claim(claimer: Claimer, worker: str, connection: Connection, tasks: Sequence[UUID]) -> list[Claimed]:
    answers = await claimer.claim([ClaimRequest(task_id=task, worker_id=worker) for task in tasks], connection)
    return [item for item in answers if isinstance(item, Claimed)]


async def _lock_job(connection: Connection, task_id: UUID) -> None:
    try:
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        await connection.execute(queries("in_process")["lock_job"], task_id)
    except asyncpg.LockNotAvailableError:
        raise Unavailable("another replica runs a task of the same job") from None


def _run(claimed: Claimed, task: TaskPayload) -> CompleteRequest:
    operator = IN_PROCESS.get(task.operator)
    if operator is None:
        return _failed(claimed, f"operator {task.operator!r} does not run in the Dispatcher", retryable=False)
    try:
        with span("run", **task_fields(claimed)), log_fields(**task_fields(claimed)):
            outcome = operator.run(task, task.state)
    except BadInput as wrong:
        return _failed(claimed, f"{wrong.message} ({wrong.hint})" if wrong.hint else wrong.message, retryable=False)
    except Exception as wrong:
        log.exception("operator failed", operator=task.operator, **task_fields(claimed))
        return _failed(claimed, f"{type(wrong).__name__}: {wrong}", retryable=True)
    return CompleteRequest(
        task_id=task.task_id,
        attempt=claimed.attempt,
        lease_token=claimed.lease_token,
        status="Completed",
        events=list(outcome.events),
        invalidations=list(outcome.invalidations),
        state=outcome.state,
    )


def _failed(claimed: Claimed, error: str, *, retryable: bool) -> CompleteRequest:
    return CompleteRequest(
        task_id=claimed.task.task_id,
        attempt=claimed.attempt,
        lease_token=claimed.lease_token,
        status="Failed",
        error_message=error,
        retryable=retryable,
    )
