"""A DAG with an always-on source, and the steps of the loop that keeps it running."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from tests.support.verbs import accept_events
from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.sources.keep_running import KeepSourcesRunning
from tracelake.store.queries import queries
from tracelake.wire.task.lifecycle import Claimed, ClaimRequest, HeartbeatRequest
from tracelake.wire.task.outputs import (
    CompleteAnswer,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
)

DAG = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - {name: follow, operator: pull, source: {kind: always_on}, retry: {backoff: 10s}}
  - {name: work, operator: pull, inputs: [{from: {job: follow}}]}
"""
OTHER_WORK = DAG.replace("name: work, operator: pull", "name: work, operator: pull, config: {n: 2}")


async def source(control: Control) -> asyncpg.Record:
    [row] = await control.pool.fetch(
        "SELECT s.*, s.state::text AS state_text, t.status::text AS task_status, t.attempt, t.timeout_seconds"
        " FROM sources s LEFT JOIN tasks t ON t.id = s.task_id"
    )
    return row


async def settle(control: Control) -> None:
    supervisor = KeepSourcesRunning(control.pool, control.after_commit)
    while await supervisor.once():
        pass


async def claim(control: Control) -> Claimed:
    [found] = await control.claimer().claim([ClaimRequest(task_id=(await source(control))["task_id"], worker_id="w")])
    assert isinstance(found, Claimed)
    return found


async def end(control: Control, claimed: Claimed, status: str = "Completed", **more: Any) -> CompleteAnswer:
    request = CompleteRequest(
        task_id=claimed.task.task_id,
        attempt=claimed.attempt,
        lease_token=claimed.lease_token,
        status=status,  # type: ignore[arg-type]
        error_message="broken" if status == "Failed" else None,
        **more,
    )
    return await control.completer()(request, decode(parse_token(claimed.capability_token).payload))


async def must_stop(control: Control, claimed: Claimed) -> bool:
    beat = HeartbeatRequest(task_id=claimed.task.task_id, attempt=claimed.attempt, lease_token=claimed.lease_token)
    [row] = await control.pool.fetch(
        queries("claim")["renew_leases"], [beat.task_id], [beat.attempt], [beat.lease_token], [None]
    )
    return bool(row["paused"] or row["draining"])


async def jobs_with_source(control: Control) -> dict[UUID, str]:
    rows = await control.pool.fetch("SELECT job_id, state::text AS state FROM sources")
    return {row["job_id"]: row["state"] for row in rows}


async def emit(control: Control, claimed: Claimed, **more: Any) -> EventsAnswer:
    fence: dict[str, Any] = {
        "task_id": claimed.task.task_id,
        "attempt": claimed.attempt,
        "lease_token": claimed.lease_token,
    }
    claims = decode(parse_token(claimed.capability_token).payload)
    return await accept_events(control, EventsRequest(**fence, **more), claims)


async def claim_of_job(control: Control) -> Claimed:
    """Of the one source that is running, whatever else drains."""
    task_id = await control.pool.fetchval("SELECT task_id FROM sources WHERE state = 'Running'")
    [found] = await control.claimer().claim([ClaimRequest(task_id=task_id, worker_id="w")])
    assert isinstance(found, Claimed)
    return found


async def lose(control: Control) -> None:
    await control.pool.execute("UPDATE tasks SET lease_expires_at = now() WHERE status = 'Running'")
    await control.expire_leases().once()


async def later(control: Control, seconds: float) -> None:
    """As if so much time had passed for every source."""
    await control.pool.execute("UPDATE sources SET state_since = state_since - make_interval(secs => $1)", seconds)
