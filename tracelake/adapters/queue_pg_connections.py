"""The connections of `queue_pg.py` to its server: some for statements, and one that listens for all who wait."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import asyncpg
import structlog

from tracelake.errors import DatabaseUnavailable

CHANNEL: Final = "pgqueue"
CONNECT_SECONDS: Final = 5.0
"""How long a connection may take to open, or to close."""

OUTAGE: Final = (
    OSError,  # TimeoutError is one
    asyncpg.InterfaceError,  # the connection closed between two uses
    asyncpg.InternalClientError,  # it was cut in the middle of a question
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,  # connections, memory, disk
    asyncpg.OperatorInterventionError,  # a shutdown, a start, a statement that was ended from outside
    asyncpg.ReadOnlySQLTransactionError,  # a server that has been put behind another
)
"""What asyncpg raises when the server is away, or cannot just now: trying again may help."""

log = structlog.get_logger(__name__)


class Server:
    """The connections for statements, opened when they are needed and again after the server was away.

    Every call is one statement and leaves no trace in its session. A pool's care for that would cost as much again.
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
                # Nobody knows what it is doing. The polite way to end it waits for an answer, which may never come.
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
        return await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, server_settings=settings)


class QueueListener:
    """One connection that listens, for all who wait."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ears: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listening: asyncio.Task[None] | None = None

    @contextmanager
    def heard(self, queue: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have come into the queue."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        rung = asyncio.Event()
        self._ears[queue].add(rung)
        try:
            yield rung
        finally:
            self._ears[queue].remove(rung)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._ring_all()

    async def _listen(self) -> None:
        pauses = backoff()
        while True:
            try:
                await self._listen_until_lost()
                pauses = backoff()
            except (*OUTAGE, asyncpg.PostgresError) as away:
                log.warning("the queue's listener has no connection", error=str(away) or type(away).__name__)
            await asyncio.sleep(next(pauses))

    async def _listen_until_lost(self) -> None:
        lost = asyncio.Event()
        settings = {"application_name": "trace queue listener"}
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS, server_settings=settings)
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, self._on_notification)
            self._ring_all()  # nobody heard what came until now
            await lost.wait()
        finally:
            connection.terminate()

    def _on_notification(self, _connection: object, _pid: int, _channel: str, queue: object) -> None:
        for ear in self._ears.get(str(queue), ()):
            ear.set()

    def _ring_all(self) -> None:
        for ears in self._ears.values():
            for ear in ears:
                ear.set()


async def _close(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Say goodbye to the server if it listens."""
    try:
        await connection.close(timeout=CONNECT_SECONDS)
    except OUTAGE:
        connection.terminate()


def backoff() -> Iterator[float]:
    """Seconds to pause after each failure: soon at first, then once a second."""
    seconds = 0.05
    while True:
        yield seconds
        seconds = min(2 * seconds, 1.0)
