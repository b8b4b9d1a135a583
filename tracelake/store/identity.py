"""Who is asking: users by their token's subject, workers by their token's hash."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import asyncpg

from tracelake.store.queries import queries

Role = Literal["reader", "writer", "admin"]


@dataclass(frozen=True)
class User:
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: Role


async def find_user(pool: asyncpg.Pool, external_id: str) -> User | None:
    row = await pool.fetchrow(queries("identity")["find_user"], external_id)
    return User(**dict(row)) if row else None


async def is_worker_token(pool: asyncpg.Pool, token: str) -> bool:
    """The index finds the hash; the comparison of what it found takes the same time whatever was shown."""
    shown = hash_token(token)
    known = await pool.fetchval(queries("identity")["find_worker_token"], shown)
    return known is not None and hmac.compare_digest(known, shown)


def hash_token(token: str) -> bytes:
    """Tokens are 256 random bits, so a plain hash keeps them; no salt, so that the hash can be looked up."""
    return hashlib.sha256(token.encode()).digest()
