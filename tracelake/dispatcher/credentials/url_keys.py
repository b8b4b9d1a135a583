"""Keys that sign the Dispatcher's URLs: created once in the state database, and shared by all replicas."""

from __future__ import annotations

import secrets

import asyncpg

from tracelake.store.queries import queries

KEY_BYTES = 32


class UrlKeys:
    """By name; each is read from the database once."""

    def __init__(self) -> None:
        self._keys = dict[str, bytes]()

    async def get(self, pool: asyncpg.Pool, name: str) -> bytes:
        key = self._keys.get(name)
        if key is None:
            await pool.execute(queries("bundles")["ensure_url_key"], name, secrets.token_bytes(KEY_BYTES))
            key = self._keys[name] = await pool.fetchval(queries("bundles")["find_url_key"], name)
        return key
