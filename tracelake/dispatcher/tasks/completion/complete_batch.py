"""A batch of completions in Postgres: one statement fences and ends them all, stores their events and routes these.

Where completions of the batch have further effects (commits of outputs, published ranges, invalidations), the batch is
a transaction: their tasks and then their datasets are locked, in the order of their ids; each makes its commits in a
savepoint, so that one that is refused takes no other with it; the same statement then ends them with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID

import asyncpg
import msgspec
import structlog

from tracelake.dispatcher.dags.catalog import codes
from tracelake.dispatcher.events.accept import store_invalidations
from tracelake.dispatcher.events.new_events import NewEvent, transposed
from tracelake.dispatcher.events.route import HOLD
from tracelake.dispatcher.outbox.dispatch import WakeUp
from tracelake.dispatcher.tasks.completion.commit_outputs import Committed, commit_outputs, lock_datasets
from tracelake.dispatcher.tasks.completion.completion import Completion
from tracelake.domain.event import partition_key
from tracelake.domain.task import TaskState
from tracelake.errors import BadInput, Conflict, LeaseLost, Refused, TraceError
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import JobCache
from tracelake.store.queries import Connection, Queryable, Row, fetch_rows, queries
from tracelake.store.tasks import FencedTask, fence_columns, is_over, lock_fenced, not_current
from tracelake.wire.task.outputs import CompleteAnswer

Commits = Mapping[UUID, Committed]
Effect = Commits | TraceError
log = structlog.get_logger()

REFUSED: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.DeadlockDetectedError)
"""The statement as a whole was refused, because of one completion or of a job that it triggers."""


@dataclass(frozen=True)
class BatchOptions:
    jobs: JobCache
    replica: str
    failure_alert: str
    routes: bool
    """Whether events are routed in the same statement; only where this replica publishes the wake-ups after it."""


class BatchRow(Row, frozen=True):
    """A task as it was before its completion; without a number, a new task, of which only the last two are set."""

    n: int | None
    open: bool
    """The attempt could still be completed: the batch ended it."""
    status: str
    completion_hash: bytes | None
    answer: str | None
    """To the completion that ended the attempt before."""
    next_retry_at: datetime | None
    retry_seconds: float | None
    was_final: bool
    org_id: UUID
    dag_name: str
    job_name: str
    restarts: bool | None
    """An always-on source, which is started again after a failure."""
    has_slots: bool
    entry: int | None
    payload: str


class Ended(NamedTuple):
    """An attempt that the batch ended: the completion, and the task as it was before."""

    completion: Completion
    task: BatchRow
    unchanged: int
    """How many partitions it wrote with the content that they had already."""


@dataclass(frozen=True)
class BatchResult:
    answers: Sequence[CompleteAnswer | Exception]
    """In the order of the batch."""
    ended: Sequence[Ended] = ()
    wake_ups: Sequence[WakeUp] = ()
    """Of tasks that were created and may start."""
    created: int = 0
    """Tasks; those without a wake-up wait for a slot of their job."""
    has_events_to_route: bool = False


async def complete_batch(pool: asyncpg.Pool, batch: Sequence[Completion], options: BatchOptions) -> list[BatchResult]:
    """One result; or, if the batch was refused as a whole, one for each completion, tried by itself.

    What is wrong with a job that an event triggers is no fault of the task that completes: where the statement is
    refused for a single completion, routing its events is left to the drain.
    """
    try:
        return [await _complete(pool, batch, options)]
    except REFUSED as refusal:
        if len(batch) == 1 and not options.routes:
            return [BatchResult([refusal])]
        # Without its details, which show the row with its lease token.
        because = getattr(refusal, "message", None) or type(refusal).__name__
        log.warning("Postgres refused a batch of completions", because=because, tasks=len(batch))
    if len(batch) == 1:
        return await complete_batch(pool, batch, replace(options, routes=False))
    return [result for completion in batch for result in await complete_batch(pool, [completion], options)]


async def _complete(pool: asyncpg.Pool, batch: Sequence[Completion], options: BatchOptions) -> BatchResult:
    if not any(completion.has_effects for completion in batch):
        return await _end(pool, batch, {}, options)
    async with pool.acquire() as connection, connection.transaction():
        result = await complete_in_transaction(connection, batch, options)
        crash_point("complete_outputs.before_commit")
    return result


async def complete_in_transaction(
    connection: Connection, batch: Sequence[Completion], options: BatchOptions
) -> BatchResult:
    """For a caller that holds the transaction, and rolls it back if this raises."""
    effects = {}
    if any(completion.has_effects for completion in batch):
        effects = await _commit_effects(connection, batch, options.jobs)
    return await _end(connection, batch, effects, options)


async def _commit_effects(connection: Connection, batch: Sequence[Completion], jobs: JobCache) -> dict[int, Effect]:
    """What came of the completions with effects, by their position; none for those that are not open any more."""
    tasks = await lock_fenced(connection, [completion.request for completion in batch])
    pending = [n for n, completion in enumerate(batch) if completion.has_effects and n in tasks and tasks[n].open]
    await lock_datasets(connection, chain.from_iterable(batch[n].request.outputs for n in pending))
    return {n: await _commit(connection, batch[n], tasks[n], jobs) for n in pending}


async def _commit(connection: Connection, completion: Completion, task: FencedTask, jobs: JobCache) -> Effect:
    request, claims = completion.request, completion.claims
    try:
        async with connection.transaction():
            if task.late and request.outputs:
                await _refuse_deleted_files(connection, task.started_at)
            job = await jobs.through(connection).get(task.job_id)
            commits = await commit_outputs(
                connection, job, request, claims, schemas=completion.schemas, started_at=task.started_at
            )
            await store_invalidations(connection, claims, request.invalidations, completion.invalidations)
            return commits
    except (BadInput, Refused) as refusal:
        return refusal


async def _refuse_deleted_files(connection: Connection, started_at: datetime) -> None:
    """Files of an attempt whose lease expired long ago may have been deleted since they were verified."""
    sql = queries("orphan_files")
    await connection.execute(sql["first_mark"])
    if await connection.fetchval(sql["is_swept"], started_at):
        raise LeaseLost(
            "the lease expired long ago, and the files of the attempt have been deleted",
            where="/attempt",
            hint="stop, report nothing",
        )


async def _end(
    database: Queryable,
    batch: Sequence[Completion],
    effects: Mapping[int, Effect],
    options: BatchOptions,
) -> BatchResult:
    """Runs the statement for all that were not refused before."""
    refusals = {n: effect for n, effect in effects.items() if isinstance(effect, TraceError)}
    commits = {n: effect for n, effect in effects.items() if not isinstance(effect, TraceError)}
    left = {n: completion for n, completion in enumerate(batch) if n not in refusals}
    columns = *_completion_columns(left, commits), *_event_columns(left, commits), *_use_columns(left.values())
    crash_point("complete_failed.before_commit", when=any(item.fault for item in batch))
    rows = await fetch_rows(
        database,
        queries("complete")["complete_tasks"],
        BatchRow,
        options.routes,
        options.replica,
        HOLD,
        options.failure_alert,
        *columns,
        codes(),
    )
    tasks = {row.n: row for row in rows if row.n is not None}
    created = [row for row in rows if row.n is None]
    ended = [Ended(left[n], task, _unchanged(commits.get(n))) for n, task in tasks.items() if task.open]
    return BatchResult(
        answers=[refusals.get(n) or _answer(item, tasks.get(n), commits.get(n)) for n, item in enumerate(batch)],
        ended=ended,
        wake_ups=[WakeUp(row.entry, row.payload) for row in created if row.entry is not None],
        created=len(created),
        has_events_to_route=not options.routes and any(item.completion.events for item in ended),
    )


def _completion_columns(batch: Mapping[int, Completion], commits: Mapping[int, Commits]) -> Iterator[Iterable[Any]]:
    completions = batch.values()
    requests = [completion.request for completion in completions]
    yield list(batch)
    yield from fence_columns(requests)
    yield [completion.hash for completion in completions]
    yield [request.status for request in requests]
    yield [completion.reason for completion in completions]
    yield [request.retryable for request in requests]
    yield [completion.fault for completion in completions]
    yield [completion.outputs for completion in completions]
    yield [
        {str(key): number for key, number in _numbers(commits[n]).items()} if commits.get(n) else None for n in batch
    ]
    yield [completion.state for completion in completions]
    yield [request.progress for request in requests]
    yield [completion.reports for completion in completions]


def _event_columns(batch: Mapping[int, Completion], commits: Mapping[int, Commits]) -> list[list[Any]]:
    rows = [
        (n, *event.columns, *_update_of(event, commits.get(n, {}).get(event.event.dataset)))
        for n, completion in batch.items()
        for event in completion.events
    ]
    return transposed(rows, 12)


def _use_columns(batch: Iterable[Completion]) -> Iterator[list[int]]:
    """Calls to nodes, and bytes of the files that were committed."""
    requests = [completion.request for completion in batch]
    yield [request.requests for request in requests]
    yield [sum(output.bytes or 0 for output in request.outputs) for request in requests]


def _update_of(event: NewEvent, committed: Committed | None) -> tuple[int | None, bool]:
    """The commit that an event is about, and whether its partition has the same content as before."""
    if committed is None:
        return None, False
    return committed.number, partition_key(event.event.scope) in committed.unchanged


def _numbers(commits: Commits) -> dict[UUID, int]:
    return {dataset: committed.number for dataset, committed in commits.items()}


def _unchanged(commits: Commits | None) -> int:
    return sum(len(committed.unchanged) for committed in commits.values()) if commits else 0


def _answer(completion: Completion, task: BatchRow | None, commits: Commits | None) -> CompleteAnswer | Exception:
    request = completion.request
    if task is None:
        return not_current()
    if task.open:
        return CompleteAnswer(
            status=request.status, next_retry_at=task.next_retry_at, commits=_numbers(commits) if commits else None
        )
    return _answer_again(completion, task.status, task.completion_hash, task.answer)


def _answer_again(
    completion: Completion, status: str, known: bytes | None, answer: str | None
) -> CompleteAnswer | Exception:
    """The attempt was completed before: the same completion is answered as the first time."""
    if known == completion.hash and answer is not None:
        return msgspec.json.decode(answer, type=CompleteAnswer)
    if known is not None:
        return Conflict(
            f"this attempt has already been completed, as {status}, by another request",
            where="/status",
            hint="repeat a completion with the same body, or not at all",
        )
    if completion.ends_as is TaskState.CANCELED and status == TaskState.CANCELED:
        return CompleteAnswer(status="Canceled")
    return is_over(status)
