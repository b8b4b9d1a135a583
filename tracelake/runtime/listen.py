"""Listens for notifications (NOTIFY) on a channel of Postgres, over outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, NoReturn

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
