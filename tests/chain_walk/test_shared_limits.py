"""Two workers and the executors of Spark ask one node, and together keep to the limits of its pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.chain.proxies import rewriting_proxy
from tests.support.systems.chain import BACKFILL, ChainSystem
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.worker.lease_rpc_shares import leased_pools

pytestmark = pytest.mark.anyio

IN_FLIGHT, RATE = 3, 100.0


@dataclass
class WatchedNode:
    """A node that notes how many requests were under way at once, and when their calls came."""

    under_way: int = 0
    most: int = 0
    came: list[tuple[float, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.came.append((time.monotonic(), len(calls)))
        time.sleep(0.02)
        with self.lock:
            self.under_way -= 1
        return answers


@contextmanager
def watched(url: str) -> Iterator[tuple[WatchedNode, str]]:
    node = WatchedNode()
    with rewriting_proxy(url, node.note) as address:
        yield node, address


async def test_two_workers_and_their_executors_keep_to_one_limit(system: ChainSystem) -> None:
    await system.deploy(BACKFILL)
    control = system.walk.control
    with watched(system.devchain.url) as (node, url):
        pool = RpcPool(
            "dev",
            system.devchain.chain_id,
            (Endpoint(url, "a"),),
            max_concurrency=IN_FLIGHT,
            requests_per_second=RATE,
            batch_size=8,
        )
        began = time.monotonic()
        async with AsyncExitStack() as both:
            for name in ("one", "two"):
                pools = await both.enter_async_context(
                    leased_pools(system.walk.dispatcher, name, {"dev": pool}, "127.0.0.1")
                )
                await both.enter_async_context(working(system.worker_on(pools["dev"], name)))
            shares = "SELECT count(*) = 2 AND sum(in_flight) = $1 FROM rpc_shares WHERE in_flight > 0"
            await until(lambda: control.pool.fetchval(shares, IN_FLIGHT), "both workers have a share")
            await system.trigger("backfill", "ask", 0, 59)
            await system.settled()
    assert await system.failures() == []
    assert await control.pool.fetchval("SELECT count(*) FROM rpc_shares") == 0, "workers that stop give them back"
    assert 1 < node.most <= IN_FLIGHT
    counted = await control.pool.fetchval("SELECT sum(node_requests) FROM tasks")
    assert counted == sum(calls for _, calls in node.came), "each call is counted for the task that made it"
    assert await control.pool.fetchval("SELECT count(*) = 3 FROM tasks WHERE node_requests > 40 AND bytes_written > 0")
    total = 0
    for when, calls in sorted(node.came):
        total += calls
        assert total <= RATE * (when - began) + RATE
    assert total >= 120, "60 blocks and their receipts"
