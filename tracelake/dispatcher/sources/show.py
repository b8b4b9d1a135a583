"""Lists sources, and shows one: when it fires next, and what became of its last slots or deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg
import msgspec

from tracelake.dispatcher.flow.pause_job import find_source
from tracelake.dispatcher.sources.accept_hooks import readiness
from tracelake.dispatcher.sources.fire_schedules import CronSource
from tracelake.domain.sources.decide_slots import next_slots
from tracelake.store.queries import Row, fetch_rows, queries
from tracelake.wire.user.sources import (
    NextFire,
    SlotRow,
    SourceDeliveriesQuery,
    SourceDeliveryList,
    SourceDeliveryRow,
    SourceDetail,
    SourceList,
    SourceRow,
)

NEXT = 5
LAST = 20
Secrets = Mapping[str, Sequence[str]]


class ListedSource(Row, frozen=True):
    dag: str
    job: str
    operator: str
    runtime: str
    source: Any
    state: str | None
    pause: str | None
    paused_since: datetime | None
    last_slot: datetime | None
    last_reason: str | None
    held: int
    open_tasks: int
    org: str
    now: datetime


async def list_sources(pool: asyncpg.Pool, org_id: UUID, dag: str | None, secrets: Secrets) -> SourceList:
    rows = await fetch_rows(pool, queries("sources")["list_sources"], ListedSource, org_id, dag, None)
    return SourceList(sources=[SourceRow(**_row(row, secrets)) for row in rows])


async def show_source(pool: asyncpg.Pool, org_id: UUID, dag: str, job: str, secrets: Secrets) -> SourceDetail:
    await find_source(pool, org_id, dag, job)
    (row,) = await fetch_rows(pool, queries("sources")["list_sources"], ListedSource, org_id, dag, job)
    slots = await pool.fetch(queries("sources")["list_slots"], org_id, dag, job, LAST)
    kind = row.source["kind"]
    return SourceDetail(
        **_row(row, secrets),
        source=row.source,
        hook_path=f"/v1/hooks/{row.org}/{dag}/{job}" if kind == "webhook" else None,
        next_fires=_next_fires(row) if kind == "cron" else [],
        slots=[SlotRow(**slot) for slot in slots],
    )


async def list_deliveries(
    pool: asyncpg.Pool, org_id: UUID, dag: str, job: str, asked: SourceDeliveriesQuery
) -> SourceDeliveryList:
    await find_source(pool, org_id, dag, job)
    found = await pool.fetch(queries("sources")["list_deliveries"], org_id, dag, job, asked.below, asked.limit)
    return SourceDeliveryList(deliveries=[SourceDeliveryRow(**row) for row in found])


def _row(row: ListedSource, secrets: Secrets) -> dict[str, Any]:
    kind = row.source["kind"]
    not_ready = readiness(secrets, row.source) if kind == "webhook" else None
    fires = _next_fires(row, 1) if kind == "cron" else []
    return {
        "dag": row.dag,
        "job": row.job,
        "kind": kind,
        "operator": row.operator,
        "runtime": row.runtime,
        "ready": not_ready is None,
        "not_ready": not_ready,
        "paused": row.pause is not None,
        "pause_reason": row.pause,
        "paused_since": row.paused_since,
        "state": row.state,
        "open_tasks": row.open_tasks,
        "held": row.held,
        "next_fire": fires[0].fires_at if fires else None,
        "last_slot": row.last_slot,
        "last_reason": row.last_reason,
    }


def _next_fires(row: ListedSource, count: int = NEXT) -> list[NextFire]:
    source = msgspec.convert(row.source, CronSource, strict=False)
    rules = source.rules(row.dag, row.job)
    zone = ZoneInfo(source.tz)
    return [
        NextFire(slot=slot, local=f"{slot.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}", fires_at=slot + rules.delay)
        for slot in next_slots(rules, row.now, count)
    ]
