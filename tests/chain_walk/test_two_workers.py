"""Two workers at once on everything that a chain is made into: each piece once, and all of it equal to the chain.

Costs about 25 s.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.support.chain.storm import TABLES
from tests.support.systems.chain import FOLLOW, ChainSystem, equal, rows_of, truth
from tests.support.systems.walk import working
from tracelake.chain.abi.decode_logs import decode_logs
from tracelake.chain.abi.events import ERC20_TRANSFER
from tracelake_devchain.expected_rows import truth_table

pytestmark = pytest.mark.anyio

PAST = """
name: past
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 15}, inputs: [{from: {job: ask}}]}
  - name: ingest
    operator: cryo_ingest
    config: {rpc_pool: dev, chunk: 10}
    inputs: [{from: {job: cut}}]
    outputs: [blocks, transactions, logs]
  - name: decode
    operator: evm_decode
    config: {abi: erc20, events: [transfer]}
    inputs: [{from: {job: ingest, output: logs}}]
"""
ONCE = """
SELECT count(*) FILTER (WHERE t.status <> 'Completed' OR t.attempt <> 1) AS troubled,
       count(DISTINCT t.worker_id) AS workers
  FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.operator IN ('cryo_ingest', 'evm_decode', 'parquet_compact')
"""
COMMITS = """
SELECT j.name, count(*) AS tasks, count(DISTINCT t.dedupe_key) AS pieces,
       (SELECT count(*) FROM commits c JOIN tasks o ON o.id = c.task_id WHERE o.job_id = j.id) AS commits
  FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name IN ('ingest', 'decode', 'compact') GROUP BY j.id, j.name
"""


async def test_two_workers_do_every_piece_once_and_together_all_of_the_chain(system: ChainSystem) -> None:
    await system.deploy(PAST)
    await system.deploy(FOLLOW)
    version = await system.version("live", "follow")
    async with AsyncExitStack() as both:
        for name in ("one", "two"):
            await both.enter_async_context(working(system.worker(name)))
        await system.trigger("past", "ask", 0, 59)
        await system.until_followed(version)
        system.devchain.mine(20)
        await system.until_followed(version)
        await system.settled()
        await system.until_equal(lambda: equal(system))
    assert await system.failures() == []
    pool = system.walk.control.pool
    once = await pool.fetchrow(ONCE)
    assert once is not None
    assert dict(once) == {"troubled": 0, "workers": 2}
    found = {row["name"]: (row["tasks"], row["pieces"], row["commits"]) for row in await pool.fetch(COMMITS)}
    assert found == {"ingest": (4, 4, 12), "decode": (4, 4, 4), "compact": (3, 3, 9)}
    for output, table in enumerate(TABLES):
        ingested = await system.cold("past", "ingest", output)
        assert ingested is not None
        assert rows_of(ingested, table) == truth(system.devchain, table, 0, 59)
    transfers = await system.cold("past", "decode")
    assert transfers is not None
    true = decode_logs(truth_table(system.devchain.chain(), "logs", 0, 59), ERC20_TRANSFER).table
    assert rows_of(transfers, "logs") == rows_of(true, "logs")
