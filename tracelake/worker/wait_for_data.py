"""A task that failed during an outage of the data database is reported when the outage has ended.

Each attempt would meet the same outage. So one attempt is spent on it, however long it lasts, and it is reported as the
platform's; the lease is kept meanwhile, and no other worker claims the task to fail with it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from tracelake.operators.api.context import TaskApi

log = structlog.get_logger()

CONNECT_SECONDS: Final = 2
CHECK_SECONDS: Final = 1.0
LOST_STATES: Final = ("08", "53", "57P01", "57P02", "57P03")
"""SQLSTATEs of a connection that was lost or could not be made, and of a server that stops, starts or has no disk,
memory or connections left."""
JVM_ERRORS: Final = ("pyspark.", "py4j.")
LOST_WORDS: Final = (
    "terminating connection due to",
    "the database system is starting up",
    "the database system is shutting down",
    "org.postgresql.util.PSQLException: An I/O error occurred while sending to the backend",
    "org.postgresql.util.PSQLException: The connection attempt failed",
    "org.postgresql.util.PSQLException: This connection has been closed",
    "Check that the hostname and port are correct and that the postmaster is accepting TCP/IP connections",
)
"""The same, in the messages of Postgres and its JDBC driver: Spark passes on no SQLSTATE."""


def wait_for_data(dsn: str, api: TaskApi) -> bool:
    """Waits until it answers; returns whether it did not. Does not wait if it refuses, or if the lease is lost."""
    was_away = False
    while dsn and _is_away(dsn) and not api.lost.is_set():
        was_away = True
        log.warning("the data database does not answer; the failure is reported when it does")
        api.lost.wait(CHECK_SECONDS)
    return was_away


def is_outage(wrong: BaseException | None) -> bool:
    """Whether an error, or its cause, is an outage of Postgres, which may be over already."""
    import psycopg

    while wrong is not None:
        if isinstance(wrong, psycopg.OperationalError) and (wrong.sqlstate or "57P01").startswith(LOST_STATES):
            return True
        if type(wrong).__module__.startswith(JVM_ERRORS) and any(word in str(wrong) for word in LOST_WORDS):
            return True
        wrong = wrong.__cause__ or wrong.__context__
    return False


def _is_away(dsn: str) -> bool:
    import psycopg

    try:
        psycopg.connect(dsn, connect_timeout=CONNECT_SECONDS).close()
    except psycopg.errors.CannotConnectNow:
        return True
    except psycopg.OperationalError as wrong:
        return wrong.sqlstate is None and "FATAL" not in str(wrong)  # no server answered
    return False
