"""Keys of URLs that the Dispatcher gives out and knows again: made once, in the state database, for all replicas."""

from __future__ import annotations

import secrets

import asyncpg

from tracelake.store.queries import queries

KEY_BYTES = 32


class UrlKeys:
    """By name, for ever: read from the database once."""

    def __init__(self) -> None:
        self._keys = dict[str, bytes]()

    async def get(self, pool: asyncpg.Pool, name: str) -> bytes:
        found = self._keys.get(name)
        if found is None:
            await pool.execute(queries("bundles")["make_url_key"], name, secrets.token_bytes(KEY_BYTES))
            found = self._keys[name] = await pool.fetchval(queries("bundles")["url_key"], name)
        return found
