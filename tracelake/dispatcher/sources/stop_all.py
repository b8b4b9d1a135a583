"""Drains every source when the system stops, and lets sources start when it comes up again.

`trace down` and the supervisor drain the sources before they stop the workers. A Dispatcher that ends by itself drains
nothing: in a rolling restart the sources keep running.
"""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

HOLD = timedelta(minutes=10)
"""How long no source starts if no system comes up: longer than a system takes to stop."""


async def drain_sources(control: Control) -> int:
    """Returns how many were drained. A second call drains those that have started since."""
    crash_point("stop_sources.before_commit")
    drained = int(await control.pool.fetchval(queries("sources")["drain_all"], HOLD))
    crash_point("stop_sources.after_commit")
    control.sources.notify()
    control.stops.notify()
    return drained


async def release_sources(control: Control) -> None:
    """Lets drained sources start again: a Dispatcher starts, so the system comes up."""
    crash_point("release_sources.before_commit")
    await control.pool.execute(queries("sources")["end_hold"])
    crash_point("release_sources.after_commit")
    control.sources.notify()
