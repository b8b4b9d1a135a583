"""A user fires a source, or replays a delivery: a task of it, or events, now and out of turn. Next: step 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from tracelake.dispatcher.flow.pause_job import FoundJob, find_source
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.accept_hooks import Hook, HookDelivery, Hooks
from tracelake.dispatcher.sources.fire_task import find_task, paused, store_task
from tracelake.dispatcher.sources.operators import makes_task
from tracelake.errors import Conflict, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, fetch_column, fetch_row, find_row, queries
from tracelake.wire.user.sources import FireAnswer, FireRequest, ReplayDeliveryRequest


class StoredBody(Row, frozen=True):
    body: Any
    size_bytes: int


@dataclass(frozen=True)
class FireSource:
    pool: asyncpg.Pool
    after: AfterCommit
    hooks: Hooks

    async def fire(self, org_id: UUID, dag: str, job: str, asked: FireRequest) -> FireAnswer:
        """The same request again is answered as before."""
        request_id = asked.request_id or uuid4()
        source = await find_source(self.pool, org_id, dag, job)
        if source.kind == "always_on":
            raise Conflict(f"{dag}.{job} is an always-on source: it runs permanently", where="job")
        if source.kind == "webhook":
            size = len(msgspec.json.encode(asked.body))
            return await self._deliver((org_id, dag, job), request_id, f"fire:{request_id}", asked.body, size)
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(queries("sources")["lock_request"], request_id, org_id)
            source = await find_source(connection, org_id, dag, job)
            answer = await _fire(connection, (org_id, dag, job), source, request_id, asked.body)
            crash_point("fire_source.before_commit")
        crash_point("fire_source.after_commit")
        self.after.outbox.notify()
        return answer

    async def replay(
        self, org_id: UUID, dag: str, job: str, delivery: UUID, asked: ReplayDeliveryRequest
    ) -> FireAnswer:
        """The body of a delivery once more, as a new one."""
        request_id = asked.request_id or uuid4()
        sql = queries("sources")["find_delivery"]
        stored = await find_row(self.pool, sql, StoredBody, delivery, org_id, dag, job)
        if stored is None:
            hint = "`trace source deliveries` lists them; a body is kept for dispatcher.deliveries_kept_days"
            raise NotFound(
                f"{dag}.{job} has no delivery {delivery} with a body", where="delivery in the path", hint=hint
            )
        body, size = stored.body, stored.size_bytes
        return await self._deliver((org_id, dag, job), request_id, f"replay:{request_id}", body, size)

    async def _deliver(
        self, named: tuple[UUID, str, str], request_id: UUID, key: str, body: Any, size: int
    ) -> FireAnswer:
        hook = await fetch_row(self.pool, queries("sources")["find_hook"], Hook, *named)
        found = await self.hooks.store([HookDelivery(hook, key, body, size, None)])
        if not found:
            raise Conflict("the source was changed meanwhile", where="job", hint="try again")
        (stored,) = found.values()
        events = await fetch_column(self.pool, queries("sources")["events_of_fire"], named[0], stored.id)
        return FireAnswer(
            request_id=request_id,
            task_id=stored.task_id,
            event_ids=events,
            delivery_id=stored.id,
            held=stored.held,
            created=stored.is_new,
        )


async def _fire(
    connection: Connection, named: tuple[UUID, str, str], source: FoundJob, request_id: UUID, body: Any
) -> FireAnswer:
    org_id, dag, job = named
    before = await find_task(connection, org_id, dag, job, request_id)
    if before is not None:
        return _answer(request_id, before.id, (), created=False)
    events = await fetch_column(connection, queries("sources")["events_of_fire"], org_id, request_id)
    if events:
        return _answer(request_id, None, events, created=False)
    if source.paused or source.job_id is None:
        raise paused(dag, job)
    if makes_task(source.operator or ""):
        task = await store_task(connection, org_id, source.job_id, request_id, {}, body=body)
        return _answer(request_id, task, (), created=True)
    emitted = await fetch_column(connection, queries("sources")["emit_fire"], org_id, source.job_id, request_id, body)
    return _answer(request_id, None, emitted, created=True)


def _answer(request_id: UUID, task_id: UUID | None, events: Any, *, created: bool) -> FireAnswer:
    return FireAnswer(
        request_id=request_id,
        task_id=task_id,
        event_ids=list(events),
        delivery_id=None,
        held=False,
        created=created,
    )
