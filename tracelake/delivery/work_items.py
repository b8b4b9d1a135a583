"""Work items: taken under a lease, ended or postponed only by the holder. Everything is timed by Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn
from uuid import UUID, uuid4

import asyncpg

from tracelake.runtime.background import repeat
from tracelake.settings import DeliverySettings
from tracelake.store.db import OUTAGES
from tracelake.store.queries import queries

CHANNEL: Final = "alert_deliveries"
"""Postgres notifies it when work items are committed."""
PRUNED_AT_ONCE: Final = 1_000
PRUNE_SECONDS: Final = 60.0
DeliveryLane = tuple[UUID, str]
"""One organisation's channel."""


@dataclass(frozen=True)
class WorkItem:
    id: UUID
    lease: UUID
    org_id: UUID
    alert_definition_id: UUID
    alert_name: str
    channel: str
    event: str
    """JSON."""
    attempts: int
    """This one included."""
    at_any_age: bool
    age_seconds: float
    waited_seconds: float

    @property
    def lane(self) -> DeliveryLane:
        return self.org_id, self.channel


async def take(
    pool: asyncpg.Pool, room: int, in_progress: Mapping[DeliveryLane, int], settings: DeliverySettings
) -> Sequence[WorkItem]:
    lease = uuid4()
    lanes = list(in_progress)
    rows = await pool.fetch(
        queries("deliveries")["take"],
        room,
        lease,
        settings.lease_seconds,
        settings.per_channel,
        [org for org, _ in lanes],
        [channel for _, channel in lanes],
        [in_progress[lane] for lane in lanes],
    )
    return [WorkItem(lease=lease, **dict(row)) for row in rows]


async def next_due(pool: asyncpg.Pool) -> float | None:
    found: float | None = await pool.fetchval(queries("deliveries")["next_due"])
    return found


async def settle(
    pool: asyncpg.Pool, item: WorkItem, status: Literal["Sent", "Failed", "Stale"], error: str | None
) -> bool:
    """Returns whether the lease was still held."""
    return await _if_held(pool, "settle", item, status, error)


async def put_off(pool: asyncpg.Pool, item: WorkItem, seconds: float, error: str | None, *, counts: bool) -> bool:
    return await _if_held(pool, "put_off", item, seconds, error, counts)


async def keep_pruning(pool: asyncpg.Pool, keep: timedelta) -> NoReturn:
    """Deletes work items that ended longer ago than the retention period."""

    async def prune_all() -> None:
        while await prune(pool, keep) == PRUNED_AT_ONCE:
            pass

    await repeat(prune_all, PRUNE_SECONDS, (*OUTAGES, asyncpg.PostgresError), "old deliveries are not deleted")


async def prune(pool: asyncpg.Pool, keep: timedelta) -> int:
    """One batch; how many were deleted."""
    return int(await pool.fetchval(queries("deliveries")["prune"], keep, PRUNED_AT_ONCE))


async def _if_held(pool: asyncpg.Pool, statement: str, item: WorkItem, *values: Any) -> bool:
    return await pool.fetchval(queries("deliveries")[statement], item.id, item.lease, *values) is not None
