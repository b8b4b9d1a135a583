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
from tracelake.runtime.tracing import is_tracing, record_span
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
    DatabaseUnavailable,  # raised by the pool when no connection is free
    asyncpg.TransactionRollbackError,  # a deadlock or serialization failure: nothing was stored
    asyncpg.InternalClientError,  # for a connection that was cut in the middle of a query
)
"""Errors that say that the server is unavailable or ended the transaction, not that the statement is wrong."""

ACQUIRE_SECONDS: Final = 10.0
"""How long a caller waits for a free connection, unless a setting says otherwise."""

ADDRESS: Final = re.compile(r"postgres(ql)?://([^\s%]|%[0-9A-Fa-f]{2})+")
"""What every driver here reads alike. A driver's own error would repeat the address with its password."""

STEADY: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""For the statements of the hot path. They are planned once per connection instead of at every call, which took as long
as running them. A plan may be made while the tables are empty and used when they hold millions of rows, so only what is
right for both is left: index lookups, row by row."""


def required(dsn: SecretStr | None, setting: str) -> str:
    if dsn is None:
        variable = "TRACE_" + setting.upper().replace(".", "__")
        raise SettingsError(
            f"{setting} is not set", where=setting, hint=f"set {variable}, or let `trace up` fill it in"
        )
    if not ADDRESS.fullmatch(address := dsn.get_secret_value()):
        raise SettingsError(
            f"{setting} is not an address of a database",
            where=setting,
            hint="postgresql://user:password@host:5432/name, with %20 for a blank, %25 for a %, and so on",
        )
    return address


@asynccontextmanager
async def open_pool(
    dsn: str, *, name: str, max_size: int, steady: bool = False, acquire_seconds: float = ACQUIRE_SECONDS
) -> AsyncIterator[BoundedPool]:
    """Connections open when they are needed, and again after an outage. `steady`: for the hot path (`STEADY`)."""
    pool = BoundedPool(
        dsn,
        name=name,
        acquire_seconds=acquire_seconds,
        init=_set_codecs,
        reset=_keep_session,
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


async def _set_codecs(connection: asyncpg.Connection) -> None:
    """Jsonb parameters and results are Python values; a statement casts to text what is decoded into a type."""
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        encoder=lambda value: msgspec.json.encode(value).decode(),
        decoder=msgspec.json.decode,
    )
    if is_tracing():
        connection.add_query_logger(_trace_statement)


def _trace_statement(query: asyncpg.connection.LoggedQuery) -> None:
    """Records a span for each named statement, without its arguments."""
    if (name := name_of(query.query)) is not None:
        record_span(f"sql {name}", query.elapsed, failed=query.exception is not None)


async def _keep_session(connection: asyncpg.Connection) -> None:
    """Statements leave nothing in a session, so no round trip resets it."""


def unavailable(outage: Exception, home: Path | None = None) -> Unavailable:
    """An outage as a typed error. `home`: the data folder of an embedded server, which stops when its disk is full."""
    if isinstance(outage, Unavailable):
        return outage
    if isinstance(outage, asyncpg.DiskFullError):
        return DiskFull.of("the Postgres server", str(outage))
    if isinstance(outage, asyncpg.TransactionRollbackError):
        return TransactionConflict.of(str(outage))
    if isinstance(outage, OSError) and outage.errno in NO_SPACE:
        return DiskFull.of("this process", outage.filename)
    if home is not None and is_full(home):
        return DiskFull.of("the home folder", str(home))
    return DatabaseUnavailable(f"Postgres does not answer: {outage or type(outage).__name__}")


async def answers(pool: asyncpg.Pool) -> None:
    """Raise DatabaseUnavailable unless the database answers."""
    try:
        async with pool.acquire(timeout=5) as connection:
            await connection.fetchval("SELECT 1", timeout=5)
    except OUTAGES as outage:
        raise unavailable(outage) from None
