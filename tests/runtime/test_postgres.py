"""The one way to listen for notifications of Postgres."""

from __future__ import annotations

import asyncio
import os
import signal

import asyncpg
import pytest

from tests.support.waiting import SECONDS
from tracelake.runtime import postgres as module
from tracelake.runtime.background import in_background
from tracelake.runtime.postgres import listen, pool_connection
from tracelake.store.db import open_pool

pytestmark = pytest.mark.anyio
LISTENER = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'trace test'"
    " AND pid <> pg_backend_pid()"
)


async def test_it_listens_again_after_a_cut_and_says_that_notifications_may_have_been_missed(state_db: str) -> None:
    payloads: asyncio.Queue[str | None] = asyncio.Queue()
    statuses: list[bool] = []
    async with open_pool(state_db, name="test", max_size=2) as pool, asyncio.timeout(SECONDS):
        async with in_background(
            listen(lambda: pool_connection(pool), "updates", payloads.put_nowait, statuses.append)
        ):
            assert await payloads.get() is None
            await pool.execute("NOTIFY updates, 'first'")
            assert await payloads.get() == "first"
            await pool.execute("SELECT pg_terminate_backend($1)", await pool.fetchval(LISTENER))
            assert await payloads.get() is None
            await pool.execute("NOTIFY updates, 'second'")
            assert await payloads.get() == "second"
        assert statuses == [True, False, True, False]
        assert await _channels(pool) == [], "its connection went back to the pool with a listener on it"


async def test_a_connection_that_answers_nothing_is_replaced(state_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut network cable ends no connection: only a check finds it. Here, its server process is frozen."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.2)
    payloads: asyncio.Queue[str | None] = asyncio.Queue()
    async with (
        open_pool(state_db, name="test", max_size=2) as pool,
        asyncio.timeout(SECONDS),
        in_background(listen(lambda: pool_connection(pool), "updates", payloads.put_nowait)),
    ):
        await payloads.get()
        server: int = await pool.fetchval(LISTENER)
        os.kill(server, signal.SIGSTOP)
        try:
            assert await payloads.get() is None
        finally:
            os.kill(server, signal.SIGCONT)
        await pool.execute("NOTIFY updates, 'again'")
        assert await payloads.get() == "again"


async def _channels(pool: asyncpg.Pool) -> list[asyncpg.Record]:
    """On which the connections of the pool listen."""
    sql = "SELECT pg_listening_channels()"
    async with pool.acquire() as connection:
        return [*await pool.fetch(sql), *await connection.fetch(sql)]
