"""Two workers and the executors of Spark ask one node, and together keep to the limits of its pool."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import pytest

from tests.support.chain.proxies import watched_node
from tests.support.systems.chain import BACKFILL, ChainSystem
from tests.support.systems.walk import working
from tests.support.waiting import until
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.worker.lease_rpc_shares import leased_pools

pytestmark = pytest.mark.anyio

IN_FLIGHT, RATE = 3, 100.0


async def test_two_workers_and_their_executors_keep_to_one_limit(system: ChainSystem) -> None:
    await system.deploy(BACKFILL)
    control = system.walk.control
    with watched_node(system.devchain.url) as node:
        pool = RpcPool(
            "dev",
            system.devchain.chain_id,
            (Endpoint(node.url, "a"),),
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
    assert counted == node.calls, "each call is counted for the task that made it"
    assert await control.pool.fetchval("SELECT count(*) = 3 FROM tasks WHERE node_requests > 40 AND bytes_written > 0")
    node.check_rate(RATE, began)
    assert node.calls >= 120, "60 blocks and their receipts"
