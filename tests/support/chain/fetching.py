"""Nodes that are asked without a pause, and what they answer compared with the chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.chain.devchain import Devchain
from tracelake.chain.fetch import Fetched
from tracelake.chain.nodes.rpc import RpcClient, run
from tracelake.chain.nodes.rpc_pool import RpcPool
from tracelake.chain.schemas import SCHEMAS
from tracelake_devchain.expected_rows import truth_table

QUICK = {"attempts": 4, "rest": 0.01, "longest_rest": 0.05}


def assert_true(devchain: Devchain, fetched: Fetched) -> None:
    chain = devchain.chain()
    for name, table in fetched.tables.items():
        table.validate(full=True)
        assert table.schema == SCHEMAS[name]
        assert table.equals(truth_table(chain, name, fetched.start, fetched.end)), name
    hashes = [bytes.fromhex(made.hash[2:]) for made in chain.blocks(fetched.start, fetched.end)]
    assert list(fetched.hashes) == hashes
    assert fetched.last_hash == hashes[-1]
    assert fetched.first_parent_hash.hex() == chain.block(fetched.start).block.parent_hash[2:]


def run_with(pool: RpcPool, call: Callable[[RpcClient], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with RpcClient(pool) as client:
            return await call(client)

    return run(main())
