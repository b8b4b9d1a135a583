"""Leases shares of the limits of node pools to a worker (`domain/flow/rpc_shares.py` decides), or takes them back."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from tracelake.dispatcher.events.new_events import transposed
from tracelake.domain.flow.rpc_shares import Grant, Holding, PoolLimit, grant
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.queries import Connection, Row, fetch_rows, queries
from tracelake.wire.internal.rpc_shares import PoolUse, RpcShare, RpcSharesAnswer, RpcSharesRequest


class ShareRow(Row, frozen=True):
    pool: str
    worker: str
    request: int
    in_flight: int
    rate: float | None
    wanted: int
    limit_in_flight: int
    limit_rate: float | None

    @property
    def holding(self) -> Holding:
        limit = PoolLimit(self.limit_in_flight, self.limit_rate)
        return Holding(self.worker, PoolLimit(self.in_flight, self.rate), self.wanted, limit)


async def lease_rpc_shares(pool: asyncpg.Pool, request: RpcSharesRequest, lease_seconds: float) -> RpcSharesAnswer:
    """One request at a time for a pool, over all replicas; timed by Postgres alone."""
    if not request.pools:
        await pool.execute(queries("rpc_shares")["return_shares"], request.worker)
        return RpcSharesAnswer(shares=[], lease_seconds=lease_seconds)
    names = sorted({use.pool for use in request.pools})
    if len(names) < len(request.pools):
        raise InvalidRequest("a pool is named twice", where="/pools")
    async with pool.acquire() as connection, connection.transaction():
        # A statement of its own: those that follow see what the request before has stored.
        await connection.execute(queries("rpc_shares")["lock_pools"], names)
        live = await fetch_rows(connection, queries("rpc_shares")["list_shares"], ShareRow, names)
        _refuse_late(request, live)
        turn = await connection.fetchval(queries("rpc_shares")["turn"], lease_seconds)
        grants = [_grant(request.worker, use, live, turn) for use in request.pools]
        await _store(connection, request, grants, lease_seconds)
    shares = [_share(use.pool, granted) for use, granted in zip(request.pools, grants, strict=True)]
    return RpcSharesAnswer(shares=shares, lease_seconds=lease_seconds)


def _refuse_late(request: RpcSharesRequest, live: Sequence[ShareRow]) -> None:
    if any(row.worker == request.worker and row.request >= request.number for row in live):
        raise Conflict("a later request of this worker has been answered", where="/number")


def _grant(worker: str, use: PoolUse, live: Sequence[ShareRow], turn: int) -> Grant:
    limit = PoolLimit(use.max_concurrency, use.requests_per_second)
    asks = Holding(worker, PoolLimit(use.held, use.held_rate), use.wanted, limit)
    of_pool = [row.holding for row in live if row.pool == use.pool]
    own = next((row.share for row in of_pool if row.worker == worker), None)
    return grant(asks, own, [row for row in of_pool if row.worker != worker], turn)


async def _store(
    connection: Connection, request: RpcSharesRequest, grants: Sequence[Grant], lease_seconds: float
) -> None:
    rows = [
        (
            use.pool,
            granted.recorded.in_flight,
            granted.recorded.rate,
            use.used,
            use.wanted,
            use.max_concurrency,
            use.requests_per_second,
        )
        for use, granted in zip(request.pools, grants, strict=True)
    ]
    sql = queries("rpc_shares")["store_shares"]
    await connection.execute(sql, request.worker, request.number, lease_seconds, *transposed(rows, 7))


def _share(pool: str, granted: Grant) -> RpcShare:
    use = granted.use
    soon = granted.recorded != use or use.in_flight < granted.target
    return RpcShare(pool=pool, in_flight=use.in_flight, rate=use.rate, soon=soon)
