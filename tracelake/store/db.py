"""Connections to Postgres on the control path."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import msgspec
from pydantic import SecretStr

from tracelake.errors import DatabaseUnavailable, DiskFull, SettingsError, TransactionConflict, Unavailable
from tracelake.runtime.disk import NO_SPACE, is_full
from tracelake.runtime.tracing import ended, is_tracing
from tracelake.store.pool import BoundedPool
from tracelake.store.queries import name_of

OUTAGES = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InsufficientResourcesError,  # no disk, memory or connections left at the server
    DatabaseUnavailable,  # what the pool says when no connection came free
    asyncpg.TransactionRollbackError,  # a deadlock or serialization failure: nothing was stored
    asyncpg.InternalClientError,  # what it says of a connection that was cut in the middle of a question
)
"""What asyncpg raises when the server is away, or ended the transaction, rather than the statement wrong."""

ACQUIRE_SECONDS: Final = 10.0
"""How long a caller waits for a free connection where no setting says so."""

ADDRESS: Final = re.compile(r"postgres(ql)?://([^\s%]|%[0-9A-Fa-f]{2})+")
"""What every driver here reads alike. What one of them cannot read, it repeats in its error, password and all."""

STEADY: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""For the statements that are asked all the time. They are planned once per connection instead of at every call, which
took as long as running them; and as a plan may be made while the tables are empty and be used when they hold millions,
it is left nothing but what is right for both: look up by index, row by row."""


def required(dsn: SecretStr | None, setting: str) -> str:
    if dsn is None:
        variable = "TRACE_" + setting.upper().replace(".", "__")
        raise SettingsError(
            f"{setting} is not set", where=setting, hint=f"set {variable}, or let `trace up` fill it in"
        )
    if not ADDRESS.fullmatch(told := dsn.get_secret_value()):
        raise SettingsError(
            f"{setting} is not an address of a database",
            where=setting,
            hint="postgresql://user:password@host:5432/name, with %20 for a blank, %25 for a %, and so on",
        )
    return told


@asynccontextmanager
async def open_pool(
    dsn: str, *, name: str, max_size: int, steady: bool = False, acquire_seconds: float = ACQUIRE_SECONDS
) -> AsyncIterator[BoundedPool]:
    """Connections open when they are needed, and again after the server was away. `steady`: for the hot statements."""
    pool = BoundedPool(
        dsn,
        name=name,
        acquire_seconds=acquire_seconds,
        init=_speak_json,
        reset=_leave_as_it_is,
        min_size=0,
        max_size=max_size,
        command_timeout=30,
        server_settings={"application_name": f"trace {name}", **(STEADY if steady else {})},
    )
    try:
        await pool
        yield pool
    finally:
        pool.terminate()


async def _speak_json(connection: asyncpg.Connection) -> None:
    """Jsonb parameters are given as values; what is read back is cast to text in SQL and decoded where it is needed."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: msgspec.json.encode(value).decode(),
        decoder=msgspec.json.decode,
    )
    if is_tracing():
        connection.add_query_logger(_trace_statement)


def _trace_statement(said: asyncpg.connection.LoggedQuery) -> None:
    """A span for each named statement; never its arguments."""
    if (name := name_of(said.query)) is not None:
        ended(f"sql {name}", said.elapsed, failed=said.exception is not None)


async def _leave_as_it_is(connection: asyncpg.Connection) -> None:
    """Our statements leave nothing in a session, so the round trip that would clean it up after each is not needed."""


def unavailable(away: Exception, home: Path | None = None) -> Unavailable:
    """An outage as callers are told of it. `home`: where an embedded server keeps its data; it ends on a full disk."""
    if isinstance(away, Unavailable):
        return away
    if isinstance(away, asyncpg.DiskFullError):
        return DiskFull.of("the Postgres server", str(away))
    if isinstance(away, asyncpg.TransactionRollbackError):
        return TransactionConflict.of(str(away))
    if isinstance(away, OSError) and away.errno in NO_SPACE:
        return DiskFull.of("this process", away.filename)
    if home is not None and is_full(home):
        return DiskFull.of("the home folder", str(home))
    return DatabaseUnavailable(f"Postgres does not answer: {away or type(away).__name__}")


async def answers(pool: asyncpg.Pool) -> None:
    """Raise DatabaseUnavailable unless the database answers."""
    try:
        async with pool.acquire(timeout=5) as connection:
            await connection.fetchval("SELECT 1", timeout=5)
    except OUTAGES as away:
        raise unavailable(away) from None
