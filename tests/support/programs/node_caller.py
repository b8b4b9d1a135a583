"""A program: what a worker does to nodes. It leases its share of a pool's limits, and calls without a pause.

Standard input is a JSON object; a line on standard output says that the first call was answered. It ends when its
standard input does, and gives its share back.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.support.identity.service_tokens import as_service
from tests.support.tls import https
from tracelake.chain.nodes.rpc import Lane, RpcClient
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.errors import ProviderUnavailable
from tracelake.wire.client import DispatcherClient
from tracelake.worker.lease_rpc_shares import leased_pools

AT_ONCE = 8
"""More than the limit of the pool."""


async def main() -> None:
    asked = json.loads(sys.stdin.readline())
    node = Endpoint(asked["node"], "a")
    pool = RpcPool("main", asked["chain_id"], (node,), rest=0.01, longest_rest=0.05, **asked["limits"])
    async with (
        https(asked["dispatcher"], asked["ca"], headers=as_service("worker"), timeout=30) as http,
        leased_pools(DispatcherClient(http), asked["name"], {"main": pool}, "127.0.0.1") as pools,
        RpcClient(pools["main"]) as client,
    ):
        answered = asyncio.Event()
        calls = [asyncio.create_task(_call_on(client, answered)) for _ in range(AT_ONCE)]
        await answered.wait()
        sys.stdout.write("answered\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def _call_on(client: RpcClient, answered: asyncio.Event) -> None:
    while True:
        try:
            await client.work(_newest_block)
        except ProviderUnavailable:  # its share has not come yet, or has expired
            await asyncio.sleep(0.05)
        else:
            answered.set()


async def _newest_block(lane: Lane) -> object:
    return await lane.ask([("eth_blockNumber", [])])


if __name__ == "__main__":
    asyncio.run(main())
