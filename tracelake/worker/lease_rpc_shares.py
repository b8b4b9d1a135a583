"""Leases this worker's share of the limits of its pools of nodes, and renews it while the worker runs.

Without an answer of the Dispatcher the share expires: then no request to a node is under way until there is one again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, NoReturn
from uuid import uuid4

import structlog

from tracelake.chain.nodes.limits import Limits, Use
from tracelake.chain.nodes.limits_server import serve_limits
from tracelake.chain.nodes.rpc_pool import RpcPool
from tracelake.errors import TraceError
from tracelake.runtime.background import in_background
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.rpc_shares import PoolUse, RpcShare, RpcSharesRequest

log = structlog.get_logger()

SOON_SECONDS: Final = 0.25
"""Between two requests at least."""
RENEWALS: Final = 5
"""In the time of a lease: some of them may be lost."""


@asynccontextmanager
async def leased_pools(
    dispatcher: DispatcherClient, worker: str, pools: Mapping[str, RpcPool], host: str
) -> AsyncIterator[Mapping[str, RpcPool]]:
    """The pools, with the limits that this worker leases for as long as it runs."""
    if not pools:
        yield pools
        return
    leaser = ShareLeaser(dispatcher, worker, pools)
    async with serve_limits(leaser.limits, host) as limiter, in_background(leaser.run()):
        yield {name: replace(pool, limiter=limiter) for name, pool in pools.items()}
    await leaser.give_back()


class ShareLeaser:
    def __init__(self, dispatcher: DispatcherClient, worker: str, pools: Mapping[str, RpcPool]) -> None:
        self._dispatcher, self._pools = dispatcher, pools
        # A process id may be used again before the share of the last process with it has expired.
        self._worker = f"{worker} {uuid4().hex[:8]}"
        self._number = 0
        self._reported: dict[str, Use] = {}
        self._lease_seconds = math.inf
        self.limits = {name: Limits(0, 0.0, name=name, until=-math.inf) for name in pools}

    async def run(self) -> NoReturn:
        while True:
            pause = SOON_SECONDS
            try:
                if not await self.once():
                    pause = self._lease_seconds / RENEWALS
            except TraceError as away:
                log.warning("the shares of node pools were not renewed", because=away.message)
            except Exception:
                log.exception("the shares of node pools were not renewed")
            await self._until_due(pause)

    async def once(self) -> bool:
        """Asks for the next share of each pool. True: again soon."""
        self._number += 1
        self._reported = {name: limits.use() for name, limits in self.limits.items()}
        request = RpcSharesRequest(
            worker=self._worker,
            number=self._number,
            pools=[_pool_use(pool, self._reported[name]) for name, pool in self._pools.items()],
        )
        sent_at = time.monotonic()
        answer = await self._dispatcher.lease_rpc_shares(request)
        self._lease_seconds = answer.lease_seconds
        for share in answer.shares:
            self._use(share, sent_at + answer.lease_seconds)
        return any(share.soon for share in answer.shares)

    async def give_back(self) -> None:
        """Others need not wait until it expires."""
        with suppress(TraceError):
            await self._dispatcher.lease_rpc_shares(
                RpcSharesRequest(worker=self._worker, number=self._number + 1, pools=[])
            )

    def _use(self, share: RpcShare, until: float) -> None:
        if share.pool in self.limits:
            self.limits[share.pool].set(share.in_flight, share.rate, until)

    async def _until_due(self, seconds: float) -> None:
        """Sooner if requests wait of which the Dispatcher does not know yet."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(SOON_SECONDS, left))
            if any(self._wants_more(name) for name in self.limits):
                return

    def _wants_more(self, name: str) -> bool:
        limits, reported = self.limits[name], self._reported.get(name)
        return (
            limits.lacks
            and reported is not None
            and reported.wanted <= limits.in_flight < self._pools[name].max_concurrency
        )


def _pool_use(pool: RpcPool, use: Use) -> PoolUse:
    return PoolUse(
        pool=pool.name,
        max_concurrency=pool.max_concurrency,
        requests_per_second=pool.requests_per_second,
        held=use.held,
        held_rate=use.rate,
        used=use.used,
        wanted=use.wanted,
    )
