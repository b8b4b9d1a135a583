"""A task that failed while the data database was away is reported when that is back.

Each attempt would meet the same outage, and a few minutes of it would use up all of them. So one attempt is spent on an
outage, however long it is; the lease is kept meanwhile, and nobody else claims the task to fail with it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from trace_platform.operators.context import TaskDoor

log = structlog.get_logger()

CONNECT_SECONDS: Final = 2
LOOK_SECONDS: Final = 1.0


def wait_for_data(dsn: str, door: TaskDoor) -> None:
    """Returns at once if it answers, if it refuses (time will not help), or if the lease is lost."""
    while dsn and _is_away(dsn) and not door.lost.is_set():
        log.warning("the data database is away; what failed meanwhile is reported when it is back")
        door.lost.wait(LOOK_SECONDS)


def _is_away(dsn: str) -> bool:
    import psycopg

    try:
        psycopg.connect(dsn, connect_timeout=CONNECT_SECONDS).close()
    except psycopg.errors.CannotConnectNow:
        return True
    except psycopg.OperationalError as wrong:
        return wrong.sqlstate is None and "FATAL" not in str(wrong)  # nobody answered: no server said why
    return False
