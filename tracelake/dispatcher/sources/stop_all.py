"""The system goes down: every source is told to stop, and no replica starts one until the system comes up again.

Asked for by whoever stops the system (`trace down`, the supervisor), before the workers are stopped. A Dispatcher that
ends by itself drains nothing: in a rolling restart the sources run on.
"""

from __future__ import annotations

from datetime import timedelta

from tracelake.dispatcher.control import Control
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

HELD = timedelta(minutes=10)
"""How long nobody starts a source after that, if no system comes up: longer than a system takes to go down."""


async def drain_sources(control: Control) -> int:
    """How many were told. Asked again, it tells those that have started since."""
    crash_point("stop_sources.before_commit")
    told = int(await control.pool.fetchval(queries("sources")["drain_all"], HELD))
    crash_point("stop_sources.after_commit")
    control.sources.notify()
    control.stops.notify()
    return told


async def release_sources(control: Control) -> None:
    """A Dispatcher starts, so the system comes up: what was drained may run again."""
    crash_point("release_sources.before_commit")
    await control.pool.execute(queries("sources")["end_hold"])
    crash_point("release_sources.after_commit")
    control.sources.notify()
