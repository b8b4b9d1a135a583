"""The connections of `queue_pg.py` to its server: some for statements, and one that listens for all receivers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from tracelake.errors import DatabaseUnavailable
from tracelake.runtime.postgres import PostgresConnection, listen

CHANNEL: Final = "pgqueue"
CONNECT_SECONDS: Final = 5.0
"""How long a connection may take to open, or to close."""

OUTAGE: Final = (
    OSError,  # TimeoutError is one
    asyncpg.InterfaceError,  # the connection closed between two uses
    asyncpg.InternalClientError,  # it was cut in the middle of a statement
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # connections, memory, disk
    asyncpg.OperatorInterventionError,  # a shutdown, a start, a statement that was ended from outside
    asyncpg.ReadOnlySQLTransactionError,  # a server that has been put behind another
)
"""What asyncpg raises when the server does not answer, or cannot at the moment: a retry may help."""


class Server:
    """The connections for statements, opened when they are needed and again after an outage.

    Every call is one statement that leaves nothing in its session, so the reset of a pool would only cost time.
    """

    def __init__(self, dsn: str, connections: int) -> None:
        self._dsn = dsn
        self._room = asyncio.Semaphore(connections)
        self._idle: list[asyncpg.Connection[asyncpg.Record]] = []
        self._closed = False

    async def fetch(self, sql: str, *arguments: Any) -> list[asyncpg.Record]:
        async with self._room:
            connection = await self._connection()
            try:
                rows = await connection.fetch(sql, *arguments)
            except BaseException:
                # Its state is unknown. `close` waits for an answer, which may never come.
                connection.terminate()
                raise
            if self._closed:
                connection.terminate()
            else:
                self._idle.append(connection)
            return rows

    async def close(self) -> None:
        self._closed = True
        for connection in self._idle:
            await _close(connection)
        self._idle.clear()

    async def _connection(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._closed:
            raise DatabaseUnavailable("this queue was closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        settings = {"application_name": "trace queue", "synchronous_commit": "off"}
        return await asyncpg.connect(
            self._dsn, timeout=CONNECT_SECONDS, server_settings=settings, connection_class=PostgresConnection
        )


class QueueListener:
    """One connection that listens for the notifications of all queues."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, queues: Iterable[str]) -> Iterator[asyncio.Event]:
        """An event that is set whenever one of the queues may have a new message."""
        if self._listening is None:
            self._listening = asyncio.create_task(listen(self._connection, CHANNEL, self._notify))
        event = asyncio.Event()
        for queue in queues:
            self._waiting[queue].add(event)
        try:
            yield event
        finally:
            for queue in queues:
                self._waiting[queue].remove(event)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._notify(None)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        settings = {"application_name": "trace queue listener"}
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, server_settings=settings)
        try:
            yield connection
        finally:
            connection.terminate()

    def _notify(self, queue: str | None) -> None:
        """None: every queue."""
        for events in self._waiting.values() if queue is None else [self._waiting.get(queue, ())]:
            for event in events:
                event.set()


async def _close(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Closes it in good order if the server answers."""
    try:
        await connection.close(timeout=CONNECT_SECONDS)
    except OUTAGE:
        connection.terminate()
