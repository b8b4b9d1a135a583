"""Drains every source when the system stops, and lets sources start when it comes up again.

`trace down` and the supervisor drain the sources before they stop the workers. A Dispatcher that ends by itself drains
nothing: in a rolling restart the sources keep running.
"""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from tracelake.dispatcher.signal import AfterCommit, Signal
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

HOLD = timedelta(minutes=10)
"""How long no source starts if no system comes up: longer than a system takes to stop."""


async def drain_sources(pool: asyncpg.Pool, after: AfterCommit) -> int:
    """Returns how many were drained. A second call drains those that have started since."""
    crash_point("stop_sources.before_commit")
    drained = int(await pool.fetchval(queries("sources")["drain_all"], HOLD))
    crash_point("stop_sources.after_commit")
    after.sources.notify()
    after.stops.notify()
    return drained


async def release_sources(pool: asyncpg.Pool, sources: Signal) -> None:
    """Lets drained sources start again: a Dispatcher starts, so the system comes up."""
    crash_point("release_sources.before_commit")
    await pool.execute(queries("sources")["end_hold"])
    crash_point("release_sources.after_commit")
    sources.notify()
