"""Tasks that wait for a slot of their job (`max_concurrency`) are woken as slots come back."""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries


async def give_slots(control: Control) -> int:
    """How many tasks were woken. The jobs are locked by a statement before the one that counts their slots."""
    sql = queries("route")
    async with control.hot.acquire() as connection, connection.transaction():
        jobs = [row["id"] for row in await connection.fetch(sql["lock_slots"])]
        return int(await connection.fetchval(sql["wake_waiting"], jobs)) if jobs else 0
