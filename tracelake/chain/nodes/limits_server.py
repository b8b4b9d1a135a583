"""A worker's share of the limits of its pools, for its own threads and for the executors of its Spark.

An executor opens a connection for a request, names the pool, the endpoint and the number of calls, and waits for `go`;
the permit ends when either side closes the connection. So neither an executor that dies nor a share that expires leaves
anything behind.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

from tracelake.chain.nodes.limits import Limits, Permits, ended_early, share_is_over
from tracelake.chain.nodes.rpc_pool import Limiter, RpcPool
from tracelake.errors import ProviderUnavailable, SettingsError

GO: Final = b"go\n"
_LONGEST_LINE: Final = 1024
_of_this_process: dict[tuple[str, str], Limits] = {}
"""By token and pool: a worker's own threads need no connection."""


def limits_of(pool: RpcPool) -> Permits:
    if pool.limiter is None:
        return Limits(pool.max_concurrency, pool.requests_per_second, name=pool.name)
    own = _of_this_process.get((pool.limiter.token, pool.name))
    return own or RemoteLimits(pool.limiter, pool.name)


@asynccontextmanager
async def serve_limits(limits: Mapping[str, Limits], host: str) -> AsyncIterator[Limiter]:
    """Where executors ask for permits, by name of the pool."""
    token, serving = secrets.token_hex(16), dict[asyncio.StreamWriter, asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[writer] = cast("asyncio.Task[None]", asyncio.current_task())
        with suppress(OSError, ProviderUnavailable, ValueError, asyncio.IncompleteReadError):
            await _grant(limits, token, reader, writer)
        writer.close()
        del serving[writer]

    try:
        server = await asyncio.start_server(connected, host, 0, limit=_LONGEST_LINE)
    except OSError as wrong:
        reason = f"cannot listen on {host!r}: {wrong}"
        raise SettingsError(reason, where="worker.limits_host", hint="an address of this machine") from None
    _of_this_process.update({(token, name): own for name, own in limits.items()})
    try:
        yield Limiter(host, server.sockets[0].getsockname()[1], token)
    finally:
        server.close()
        for writer in serving:
            writer.transport.abort()
        await asyncio.gather(*serving.values())
        for name in limits:
            _of_this_process.pop((token, name), None)


async def _grant(
    limits: Mapping[str, Limits], token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    given, name, place, calls, counted_for = (await reader.readline()).decode("latin1").split(" ")
    if not hmac.compare_digest(given.encode("latin1"), token.encode()) or name not in limits:
        return
    asks = asyncio.ensure_future(_hold(limits[name], int(place), int(calls), counted_for.strip(), writer))
    gone = asyncio.ensure_future(reader.read())  # who asks sends nothing more, and closes when it is done
    try:
        await asyncio.wait({asks, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waits in (asks, gone):
            waits.cancel()
        await asyncio.gather(asks, gone, return_exceptions=True)


async def _hold(limits: Limits, place: int, calls: int, counted_for: str, writer: asyncio.StreamWriter) -> None:
    async with limits.permit(place, calls, counted_for):
        writer.write(GO)
        await writer.drain()
        await asyncio.get_running_loop().create_future()


class RemoteLimits:
    """Those of a worker, asked from another process."""

    def __init__(self, limiter: Limiter, pool: str) -> None:
        self._limiter, self._pool = limiter, pool

    @asynccontextmanager
    async def permit(self, place: int, calls: int, counted_for: str = "") -> AsyncIterator[None]:
        reader, writer = await self._connect()
        try:
            writer.write(f"{self._limiter.token} {self._pool} {place} {calls} {counted_for}\n".encode())
            if await reader.readline() != GO:
                raise share_is_over(self._pool)
            async with self._while_open(reader):
                yield
        except ConnectionError:
            raise self._unreachable() from None
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await asyncio.open_connection(self._limiter.host, self._limiter.port)
        except OSError:
            raise self._unreachable() from None

    @asynccontextmanager
    async def _while_open(self, reader: asyncio.StreamReader) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with ended_early(self._pool) as deadline:
            closed = asyncio.ensure_future(reader.read())

            def end(_: object) -> None:
                deadline.reschedule(loop.time())

            closed.add_done_callback(end)
            try:
                yield
            finally:
                closed.remove_done_callback(end)
                closed.cancel()
                await asyncio.gather(closed, return_exceptions=True)

    def _unreachable(self) -> ProviderUnavailable:
        return ProviderUnavailable(
            f"the limits of pool {self._pool} cannot be asked: the worker at {self._limiter.host} does not answer",
            where=f"rpc_pools.{self._pool}",
            hint="if Spark runs on a cluster, set worker.limits_host to an address that its executors can reach",
        )
