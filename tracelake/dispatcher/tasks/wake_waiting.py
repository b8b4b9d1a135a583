"""Wakes tasks that wait for a slot of their job (`max_concurrency`) as slots come free."""

from __future__ import annotations

import asyncpg

from tracelake.store.queries import queries


async def give_slots(pool: asyncpg.Pool) -> int:
    """How many tasks were woken. The jobs are locked by a statement before the one that counts their slots."""
    sql = queries("route")
    async with pool.acquire() as connection, connection.transaction():
        jobs = [job for (job,) in await connection.fetch(sql["lock_slots"])]
        return int(await connection.fetchval(sql["wake_waiting"], jobs)) if jobs else 0
