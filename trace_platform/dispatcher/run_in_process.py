"""Tasks of `runtime: dispatcher`: claimed, run and completed here, by the same verbs as a worker's.

One task is one transaction, from claim to completion, so it happened or it did not: no lease can run out in between,
and a replica that dies leaves the task Queued and its promise owed. The transaction begins with a lock on the job: the
state that a claim hands out is the state that the completion replaces, whoever else runs a task of the same job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

import asyncpg
import structlog

from trace_platform.capability.claims import decode
from trace_platform.capability.jws import take_apart
from trace_platform.contracts import Claimed, ClaimRequest, CompleteAnswer, CompleteRequest
from trace_platform.dispatcher.claim_task import claim_tasks
from trace_platform.dispatcher.complete_task import Completer
from trace_platform.dispatcher.control import Control
from trace_platform.dispatcher.operators.registry import IN_PROCESS
from trace_platform.errors import BadInput, Refused, Unavailable
from trace_platform.store.queries import queries

log = structlog.get_logger()

LOCK_SECONDS = 5
"""How long to wait for another replica to finish a task of the same job."""


@dataclass(frozen=True)
class Ran:
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    """Not to be claimed any more: done, canceled, or in other hands."""


async def run_in_process(control: Control, task_ids: Sequence[UUID]) -> Ran:
    """In order. Raises Unavailable if a job is held elsewhere for long: what has run has run, and the rest is owed."""
    counts = {"completed": 0, "failed": 0, "skipped": 0}
    try:
        for task_id in task_ids:
            counts[await _run_one(control, task_id)] += 1
    finally:
        control.owed.ring()  # after the commit: whoever hears it must see what was written
    return Ran(**counts)


async def _run_one(control: Control, task_id: UUID) -> str:
    async with control.pool.acquire() as connection, connection.transaction():
        await _lock_job(connection, task_id)
        alone = replace(control, pool=cast("asyncpg.Pool", _OneConnection(connection)))
        [claimed] = await claim_tasks(alone, [ClaimRequest(task_id=task_id, worker_id=f"dispatcher {control.replica}")])
        if not isinstance(claimed, Claimed):
            return "skipped"
        answer = await _complete(alone, connection, claimed, await asyncio.to_thread(_run, claimed))
    return answer.status.lower()


async def _complete(
    alone: Control, connection: asyncpg.pool.PoolConnectionProxy, claimed: Claimed, request: CompleteRequest
) -> CompleteAnswer:
    """What the operator gave; or, if that is refused, that it was: one bad task must not stop the others."""
    claims = decode(take_apart(claimed.capability_token).payload)
    try:
        async with connection.transaction():
            return await Completer(alone)(request, claims)
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, BadInput, Refused) as refusal:
        return await Completer(alone)(_failed(claimed, f"its outcome was refused: {refusal}", retryable=False), claims)


async def _lock_job(connection: asyncpg.pool.PoolConnectionProxy, task_id: UUID) -> None:
    try:
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        await connection.execute(queries("in_process")["lock_job"], task_id)
    except asyncpg.LockNotAvailableError:
        raise Unavailable("another replica runs a task of the same job") from None


def _run(claimed: Claimed) -> CompleteRequest:
    task = claimed.task
    operator = IN_PROCESS.get(task.operator)
    if operator is None:
        return _failed(claimed, f"operator {task.operator!r} does not run in the Dispatcher", retryable=False)
    try:
        outcome = operator.run(task, task.state)
    except BadInput as wrong:
        return _failed(claimed, f"{wrong.message} ({wrong.hint})" if wrong.hint else wrong.message, retryable=False)
    except Exception as wrong:
        log.exception("operator failed", operator=task.operator, task_id=str(task.task_id))
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


class _OneConnection:
    """As much of a pool as the verbs use, all of it in the transaction of one connection."""

    def __init__(self, connection: asyncpg.pool.PoolConnectionProxy) -> None:
        self.fetch = connection.fetch
        self.fetchrow = connection.fetchrow
        self.fetchval = connection.fetchval
        self.execute = connection.execute
        self._connection = connection

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
        yield self._connection
