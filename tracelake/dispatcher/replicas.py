"""Releases outbox entries that were taken by Dispatchers of this machine which no longer run."""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg

from tracelake.store.queries import fetch_column, queries


def host_of(replica: str) -> str:
    return replica.rpartition(":")[0]


def is_alive(name: str) -> bool:
    """Whether a replica of this machine runs, by the process id that its name ends with; False for this process."""
    pid = name.rpartition(":")[2]
    return pid.isdecimal() and int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()


async def take_over(pool: asyncpg.Pool, replica: str) -> int:
    """Called at the start, so that such entries need not wait until they time out.

    If the other process does run (in another container with the same host name), its wake-ups are sent twice: harmless.
    """
    sql = queries("outbox")
    takers = await fetch_column(pool, sql["takers"], f"{host_of(replica)}:")
    dead = [taker for taker in takers if not is_alive(taker)]
    return int(await pool.fetchval(sql["let_go"], dead)) if dead else 0
