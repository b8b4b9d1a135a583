"""Step 11 of one event: fence, commit outputs, close the state, put the events: back to step 3.

Two ways, the same rules. A completion with events and no outputs is one row of a batch
(`complete_without_outputs.py`). One with outputs, invalidations or a failure is a transaction of its own, in which the
outputs' commits are made.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.accept import (
    acknowledge_bootstrap,
    read_invalidations,
    store_events,
    store_invalidations,
)
from tracelake.dispatcher.events.new_events import NewEvent, read_events
from tracelake.dispatcher.tasks.commit_outputs import commit_outputs
from tracelake.dispatcher.tasks.complete_without_outputs import Plain, complete_plain
from tracelake.dispatcher.tasks.count_completions import count_one
from tracelake.dispatcher.tasks.repeated_completion import answered_before
from tracelake.dispatcher.tasks.report_failure import report_final_failure
from tracelake.dispatcher.tasks.verify_outputs import Schema, verify_outputs
from tracelake.domain.task import Backoff, retry_delay
from tracelake.errors import InvalidRequest, LeaseLost, TraceError, is_platform_fault
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.store.jobs import Job
from tracelake.store.queries import queries
from tracelake.wire.output_messages import CompleteAnswer, CompleteRequest
from tracelake.wire.user_tasks import Fault

Connection = asyncpg.pool.PoolConnectionProxy


class Completer:
    """The verb, with the batch it collects."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._plain: Coalesced[Plain, CompleteAnswer] = Coalesced(
            self._run_plain, key=lambda item: item.request.task_id, verb="complete", metrics=control.metrics
        )

    async def __call__(self, request: CompleteRequest, claims: Claims) -> CompleteAnswer:
        if _is_plain(request):
            return await self._plain(_plain(request, claims))
        _refuse_nonsense(request)
        told = read_events(request.events, claims)
        answer = await complete_task(self._control, request, claims, told, _hash(request))
        self._control.outbox_signal.notify()
        return answer

    async def several(self, asked: Sequence[tuple[CompleteRequest, Claims]]) -> list[CompleteAnswer | BaseException]:
        """Each as by itself; those that fit into the batch are put there together."""
        found: dict[int, CompleteAnswer | BaseException] = {}
        plain: dict[int, Plain] = {}
        for n, (request, claims) in enumerate(asked):
            if _is_plain(request):
                try:
                    plain[n] = _plain(request, claims)
                except TraceError as refusal:
                    found[n] = refusal
        found |= zip(plain, await self._plain.settled(plain.values()), strict=True) if plain else ()
        for n, (request, claims) in enumerate(asked):
            if n not in found:
                found[n] = await self._answered(request, claims)
        return [found[n] for n in range(len(asked))]

    async def _answered(self, request: CompleteRequest, claims: Claims) -> CompleteAnswer | BaseException:
        try:
            return await self(request, claims)
        except TraceError as refusal:
            return refusal

    async def _run_plain(self, batch: Sequence[Plain]) -> Sequence[CompleteAnswer | Exception]:
        return await complete_plain(self._control, batch)


def _is_plain(request: CompleteRequest) -> bool:
    more = request.outputs or request.datasets_published or request.invalidations or request.progress
    return request.status == "Completed" and not more


def _plain(request: CompleteRequest, claims: Claims) -> Plain:
    _refuse_nonsense(request)
    return Plain(request, claims, read_events(request.events, claims), _hash(request))


def _hash(request: CompleteRequest) -> bytes:
    return hashlib.sha256(msgspec.json.encode(request)).digest()


async def complete_task(
    control: Control, request: CompleteRequest, claims: Claims, told: Sequence[NewEvent], body: bytes
) -> CompleteAnswer:
    """One completion in a transaction of its own."""
    schemas = await verify_outputs(control.objects, request.outputs, claims)
    async with control.pool.acquire() as connection, connection.transaction():
        sql = queries("complete")["lock_fenced"]
        row = await connection.fetchrow(sql, request.task_id, request.attempt, request.lease_token)
        if row is None:
            raise LeaseLost("another attempt is the current one", where="/attempt", hint="stop, and report nothing")
        if not row["open"]:
            return answered_before(row["status"], row["completion_hash"], row["completion_answer"], request, body)
        if request.status == "Completed":
            answer = await _Success(control, connection, row, request, claims, schemas).commit(told, body)
        else:
            answer = await _fail_or_cancel(control, connection, row, request, body)
    await count_one(control, row, answer.status, len(told))
    if answer.status == "Failed" and answer.next_retry_at is None and not row["was_final"]:
        await _say_final(control, row, request)
    return answer


@dataclass(frozen=True)
class _Success:
    """A completion that counts, inside its transaction."""

    control: Control
    connection: Connection
    row: asyncpg.Record
    request: CompleteRequest
    claims: Claims
    schemas: Mapping[UUID, Schema]

    async def commit(self, told: Sequence[NewEvent], body: bytes) -> CompleteAnswer:
        connection, row, request = self.connection, self.row, self.request
        spans = read_invalidations(request.invalidations, self.claims)
        job = await self.control.jobs.through(connection).get(row["job_id"])
        if row["late"] and request.outputs:
            await self._refuse_swept()
        commits = await commit_outputs(
            connection, job, request, self.claims, schemas=self.schemas, started_at=row["started_at"]
        )
        await store_events(connection, self.claims, told, commits)
        await store_invalidations(connection, self.claims, request.invalidations, spans, None)
        await _raise_cursor(connection, row)  # before the state: `complete_plain` locks them in this order
        await self._remember()
        return await self._end(body, commits)

    async def _refuse_swept(self) -> None:
        """Files of an attempt that was given up long ago may have been removed since they were looked at."""
        sql = queries("janitor")
        await self.connection.execute(sql["first_mark"])
        if await self.connection.fetchval(sql["is_swept"], self.row["started_at"]):
            raise LeaseLost(
                "the attempt was given up long ago, and what it wrote has been removed",
                where="/attempt",
                hint="stop, and report nothing",
            )

    async def _remember(self) -> None:
        sql, row = queries("complete"), self.row
        if self.request.state is not None:
            await self.connection.execute(sql["save_state"], row["org_id"], row["job_id"], self.request.state)
        if self.request.progress is not None:
            await self.connection.execute(sql["say_last"], row["id"], msgspec.to_builtins(self.request.progress))
        if _tells(self.request):
            await acknowledge_bootstrap(self.connection, row["job_id"])
        if row["invalidation_id"]:
            await self.connection.execute(sql["mark_processed"], row["invalidation_id"], row["job_id"])

    async def _end(self, body: bytes, commits: Mapping[UUID, int]) -> CompleteAnswer:
        sql, row = queries("complete"), self.row
        answer = CompleteAnswer(status="Completed", commits=dict(commits) or None)
        outputs, told = msgspec.to_builtins(self.request.outputs), msgspec.to_builtins(answer)
        await self.connection.fetchval(
            sql["end_task"], row["id"], "Completed", None, None, None, outputs, body, told, None
        )
        await self.connection.execute(
            sql["end_attempt"], row["id"], row["attempt"], "Completed", None, row["late"], None
        )
        crash_point("complete_outputs.before_commit")
        return answer


async def _fail_or_cancel(
    control: Control, connection: Connection, row: asyncpg.Record, request: CompleteRequest, body: bytes
) -> CompleteAnswer:
    sql = queries("complete")
    failed = request.status == "Failed"
    fault = _fault(request) if failed else None
    job = await control.jobs.through(connection).get(row["job_id"])
    delay = _delay(row, job, fault) if failed and request.retryable else None
    error = (request.error_message or "the task failed and did not say why") if failed else None
    reason = None if failed else request.error_message or "the worker canceled it"
    # The answer holds a time that only the database knows, so it is written in two steps.
    next_retry_at = await connection.fetchval(
        sql["end_task"], row["id"], request.status, delay, error, reason, None, body, None, fault
    )
    if delay is not None:
        control.leases.due_in(delay.total_seconds())
    answer = CompleteAnswer(status=request.status, next_retry_at=next_retry_at)
    await connection.execute(sql["set_answer"], row["id"], msgspec.to_builtins(answer))
    await connection.execute(sql["end_attempt"], row["id"], row["attempt"], request.status, error, row["late"], fault)
    if failed and next_retry_at is None and not job.restarts:
        owed = queries("lifecycle")["notify_failure"]
        await connection.execute(owed, row["org_id"], row["id"], control.failure_alert)
    crash_point("complete_failed.before_commit")
    return answer


async def _say_final(control: Control, row: asyncpg.Record, request: CompleteRequest) -> None:
    """A source is started again by its own loop: its end is not the end of its work."""
    job = await control.jobs.get(row["job_id"])
    if not job.restarts:
        failure = {
            "org": row["org_id"],
            "dag": job.dag_name,
            "job": job.name,
            "task": row["id"],
            "attempt": row["attempt"],
        }
        report_final_failure(control, {**failure, "fault": _fault(request), "because": request.error_message})


def _fault(request: CompleteRequest) -> Fault:
    return "platform" if is_platform_fault(request.error_code or None, retryable=request.retryable) else "job"


def _delay(row: asyncpg.Record, job: Job, fault: Fault | None) -> timedelta | None:
    """Until the next attempt; None: as many as may end in this way have."""
    lost = row["platform_failures"]
    used, allowed = (
        (lost + 1, job.max_platform_failures) if fault == "platform" else (row["attempt"] - lost, row["max_attempts"])
    )
    if used >= allowed:
        return None
    backoff = Backoff(job.retry_backoff_seconds, job.retry_backoff_max_seconds)
    return timedelta(seconds=retry_delay(used, backoff, random.random()))  # noqa: S311 - spreads load only


async def _raise_cursor(connection: Connection, row: asyncpg.Record) -> None:
    trigger = json.loads(row["trigger"]) if row["trigger"] else {}
    if "cursor" in trigger:
        await connection.execute(
            queries("complete")["raise_cursor"],
            row["job_id"],
            trigger["dataset_uuid"],
            trigger["dataset_version"],
            row["org_id"],
            trigger["cursor"],
        )


def _tells(request: CompleteRequest) -> bool:
    told = request.events, request.invalidations, request.outputs, request.datasets_published
    return request.state is not None or any(told)


def _refuse_nonsense(request: CompleteRequest) -> None:
    if request.status == "Completed" and request.error_message:
        raise InvalidRequest("a completed task has no error", where="/error_message")
    if request.status != "Completed":
        for name in ("events", "outputs", "datasets_published", "invalidations"):
            if getattr(request, name):
                raise InvalidRequest(f"a task that did not complete has no {name}", where=f"/{name}")
