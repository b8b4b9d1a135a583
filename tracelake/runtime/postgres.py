"""Connections to Postgres that know the built-in types, and listening for notifications (NOTIFY) over outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import asyncpg
import structlog

from tracelake.errors import Unavailable
from tracelake.runtime.retry import delays, sleep_unless

log = structlog.get_logger()

CHECK_SECONDS: Final = 15.0
"""How often the connection is checked: a cut network cable causes no error by itself."""
CONNECT_SECONDS: Final = 10.0
LOST: Final = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    Unavailable,
)
"""What is raised when the connection cannot be opened or is lost."""

Connect = Callable[[], AbstractAsyncContextManager[Any]]

FIRST_NOT_BUILT_IN: Final = 10_000
"""Types below this object id are the same in every database; those above belong to one."""

USED: Final = (1000, 1001, 1007, 1009, 1016, 1022, 1185, 1187, 2951, 3807)
"""What statements here use: arrays of bool, bytea, integer, text, bigint, double precision, timestamptz, interval, uuid
and jsonb. With the first of them a process asks for all: that is no more work for the server than asking for one."""
_KNOWN: Final[dict[int, Any]] = {}
"""What the server said of each, types of elements before those of arrays."""
_NOTHING_PREPARED: Final = SimpleNamespace(name="known")
"""Tells asyncpg that the statement that it was preparing is still prepared."""

if TYPE_CHECKING:
    AsyncpgConnection = asyncpg.Connection[asyncpg.Record]
else:
    AsyncpgConnection = asyncpg.Connection


class PostgresConnection(AsyncpgConnection):
    """Asks for the built-in types once per process. It is for `connection_class` of asyncpg.

    asyncpg's own asks on every new connection for the types that it meets there, such as arrays of uuid, with a
    recursive query of the catalogue: more work for the server than opening the connection.
    """

    async def _introspect_types(
        self,
        typeoids: Iterable[int],
        timeout: float | None,  # noqa: ASYNC109 - the signature is asyncpg's
    ) -> tuple[list[Any], Any]:
        statement: Any = _NOTHING_PREPARED
        built_in = [oid for oid in typeoids if oid < FIRST_NOT_BUILT_IN]
        if not _KNOWN.keys() >= set(built_in):
            found, statement = await super()._introspect_types({*built_in, *USED}, timeout)  # type: ignore[misc] # not in its types
            for row in found:
                _KNOWN.setdefault(row["oid"], row)
        rows = list(_KNOWN.values()) if built_in else []
        if others := [oid for oid in typeoids if oid >= FIRST_NOT_BUILT_IN]:
            found, statement = await super()._introspect_types(others, timeout)  # type: ignore[misc] # not in its types
            rows += found
        return rows, statement


OnNotification = Callable[[str | None], None]


async def listen(
    connect: Connect,
    channel: str,
    on_notification: OnNotification,
    on_status: Callable[[bool], None] = lambda _: None,
) -> NoReturn:
    """Calls `on_notification` with each payload, and with None after each connect: some may have been missed.

    `on_status` gets True when it listens, and False when it does not.
    """
    waits = delays()

    def connected() -> None:
        nonlocal waits
        waits = delays()
        on_status(True)  # noqa: FBT003 - the status itself
        on_notification(None)

    while True:
        try:
            async with connect() as connection:
                await _listen_until_lost(connection, channel, on_notification, connected)
        except LOST as wrong:
            log.warning("no connection to listen on", channel=channel, because=str(wrong) or type(wrong).__name__)
        finally:
            on_status(False)  # noqa: FBT003 - as above
        await asyncio.sleep(next(waits))


@asynccontextmanager
async def pool_connection(pool: asyncpg.Pool) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy]:
    """A connection of the pool, which is closed afterwards: it never returns to the pool with a listener on it."""
    connection = await pool.acquire(timeout=CONNECT_SECONDS)
    try:
        yield connection
    finally:
        with suppress(asyncpg.InterfaceError):  # it was lost: asyncpg has ended it
            connection.terminate()
        with suppress(*LOST):
            await pool.release(connection)


async def _listen_until_lost(
    connection: Any, channel: str, on_notification: OnNotification, connected: Callable[[], None]
) -> None:
    lost = asyncio.Event()
    connection.add_termination_listener(lambda *_: lost.set())
    await connection.add_listener(channel, lambda *received: on_notification(str(received[3])))
    connected()
    while not await sleep_unless(lost, CHECK_SECONDS):
        await connection.execute("SELECT 1", timeout=CONNECT_SECONDS)
