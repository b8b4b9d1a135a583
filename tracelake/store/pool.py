"""A connection pool with a limit on waiting, that can find out whether it is stuck.

asyncpg's own pool waits without a limit for a free connection. Here the wait ends with a typed error, so that callers
that hold a connection each and wait for another cannot block the process for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from tracelake.errors import NoConnection
from tracelake.runtime.postgres import PostgresConnection
from tracelake.store.queries import queries

QUERIES_A_CONNECTION = 50_000
IDLE_SECONDS = 300.0
PROBE_SECONDS = 5.0


class BoundedPool(asyncpg.Pool):
    """Acquiring a connection takes at most `acquire_seconds`, unless the caller gives a time-out of its own."""

    def __init__(self, dsn: str, *, name: str, acquire_seconds: float, **options: Any) -> None:
        super().__init__(
            dsn,
            max_queries=QUERIES_A_CONNECTION,
            max_inactive_connection_lifetime=IDLE_SECONDS,
            loop=None,
            connection_class=PostgresConnection,
            record_class=asyncpg.Record,
            **options,
        )
        self.name = name
        self._acquire_seconds = acquire_seconds
        self._held: set[PoolConnectionProxy] = set()
        self._used_at = time.monotonic()
        self._has_refused = False

    def acquire(self, *, timeout: float | None = None) -> Acquiring:  # type: ignore[override]
        return Acquiring(self, self._acquire_seconds if timeout is None else timeout)

    async def take(self, seconds: float) -> PoolConnectionProxy:
        try:
            # asyncpg's own time-out would create a task for every call.
            async with asyncio.timeout(seconds):
                connection: PoolConnectionProxy = await super().acquire()
        except TimeoutError:
            if self.get_size() - self.get_idle_size() < self.get_max_size():
                raise  # the wait was for the server and not for a free connection
            self._has_refused = True
            raise self._none_free(seconds) from None
        self._held.add(connection)
        self._note_use()
        return connection

    async def release(self, connection: PoolConnectionProxy, *, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._held.discard(connection)
        self._note_use()
        await super().release(connection, timeout=timeout)

    async def is_stuck(self, dsn: str, seconds: float) -> bool:
        """Whether no connection was acquired or released for so long, callers were refused, and no statement runs.

        Asks the server through a separate connection: a server that is down or slow does not make the pool stuck.
        """
        if not self._has_refused or time.monotonic() - self._used_at < seconds:
            return False
        pids = [pid for connection in self._held for pid in _server_pid(connection)]
        probe = await asyncpg.connect(dsn, timeout=PROBE_SECONDS, command_timeout=PROBE_SECONDS)
        try:
            return not await probe.fetchval(queries("pool")["count_busy"], pids, seconds)
        finally:
            probe.terminate()

    def _note_use(self) -> None:
        self._used_at = time.monotonic()
        self._has_refused = False

    def _none_free(self, seconds: float) -> NoConnection:
        return NoConnection(
            f"all {self.get_max_size()} connections of pool {self.name!r} are in use; none came free in {seconds:g} s",
            hint="try again in a moment; if it happens often, raise state.pool_max",
        )


def _server_pid(connection: PoolConnectionProxy) -> Iterator[int]:
    """Nothing for a lost connection: asyncpg has detached it, and any call to it raises."""
    with suppress(asyncpg.InterfaceError):
        yield connection.get_server_pid()


class Acquiring:
    """For `await pool.acquire()` and `async with pool.acquire()`."""

    __slots__ = ("_connection", "_pool", "_seconds")

    def __init__(self, pool: BoundedPool, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds
        self._connection: PoolConnectionProxy | None = None

    async def __aenter__(self) -> PoolConnectionProxy:
        self._connection = await self._pool.take(self._seconds)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._pool.release(self._connection)

    def __await__(self) -> Generator[Any, None, PoolConnectionProxy]:
        return self._pool.take(self._seconds).__await__()
