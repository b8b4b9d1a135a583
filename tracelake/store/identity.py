"""Finds users by the subject of their token, and checks worker tokens by their hash."""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal
from uuid import UUID

import asyncpg

from tracelake.store.queries import Row, find_row, queries

Role = Literal["reader", "writer", "admin"]


class User(Row, frozen=True):
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: Role
    platform_admin: bool = False
    """May also create organisations."""


async def find_user(pool: asyncpg.Pool, external_id: str) -> User | None:
    return await find_row(pool, queries("identity")["find_user"], User, external_id)


async def is_worker_token(pool: asyncpg.Pool, token: str) -> bool:
    """The index finds the hash; the final comparison takes constant time."""
    hashed = hash_token(token)
    known = await pool.fetchval(queries("identity")["find_worker_token"], hashed)
    return known is not None and hmac.compare_digest(known, hashed)


def hash_token(token: str) -> bytes:
    """Tokens are 256 random bits, so a plain hash is enough; without a salt, it can be looked up."""
    return hashlib.sha256(token.encode()).digest()
