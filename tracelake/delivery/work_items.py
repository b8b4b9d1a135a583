"""Work items: taken under a lease, ended or put off only by who holds it. Everything is timed by Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID, uuid4

import asyncpg

from tracelake.settings import DeliverySettings
from tracelake.store.queries import queries

Lane = tuple[UUID, str]
"""One organisation's channel."""


@dataclass(frozen=True)
class Item:
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
    def lane(self) -> Lane:
        return self.org_id, self.channel


async def take(pool: asyncpg.Pool, room: int, in_hand: Mapping[Lane, int], told: DeliverySettings) -> Sequence[Item]:
    lease = uuid4()
    lanes = list(in_hand)
    rows = await pool.fetch(
        queries("deliveries")["take"],
        room,
        lease,
        told.lease_seconds,
        told.per_channel,
        [org for org, _ in lanes],
        [channel for _, channel in lanes],
        [in_hand[lane] for lane in lanes],
    )
    return [Item(lease=lease, **dict(row)) for row in rows]


async def next_due(pool: asyncpg.Pool) -> float | None:
    found: float | None = await pool.fetchval(queries("deliveries")["next_due"])
    return found


async def settle(pool: asyncpg.Pool, item: Item, status: Literal["Sent", "Failed", "Stale"], error: str | None) -> bool:
    """Whether it was still ours."""
    return await _was_ours(pool, "settle", item, status, error)


async def put_off(pool: asyncpg.Pool, item: Item, seconds: float, error: str | None, *, counts: bool) -> bool:
    return await _was_ours(pool, "put_off", item, seconds, error, counts)


async def _was_ours(pool: asyncpg.Pool, statement: str, item: Item, *values: Any) -> bool:
    return await pool.fetchval(queries("deliveries")[statement], item.id, item.lease, *values) is not None
