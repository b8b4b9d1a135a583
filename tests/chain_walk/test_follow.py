"""`block_follower` and `parquet_compact` on Spark: hot and cold together equal the chain. Storms: `test_storm.py`."""

from __future__ import annotations

import pytest

from tests.chain_walk.looks import Watched, until_looked, watched
from tests.chain_walk.rig import Rig, rows_of, truth
from tests.walk.walking import working

pytestmark = pytest.mark.anyio

FOLLOW = """
name: live
defaults: {runtime: ecs_platform, retry: {backoff: 1s, max_backoff: 1s}}
jobs:
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: dev, poll_seconds: 0.05, batch: 25}
    outputs: [blocks, transactions, logs, final]
    heartbeat_interval_seconds: 1s
  - name: gather
    operator: range_aggregator
    runtime: dispatcher
    config: {size: 20}
    inputs: [{from: {job: follow, output: final}}]
  - name: compact
    operator: parquet_compact
    config: {grace_seconds: 0}
    inputs:
      - {from: {job: gather}}
      - {from: {job: follow, output: blocks}, trigger: false}
      - {from: {job: follow, output: transactions}, trigger: false}
      - {from: {job: follow, output: logs}, trigger: false}
    outputs: [blocks, transactions, logs]
"""


async def equal(rig: Rig) -> None:
    """Hot and cold of every table, read apart and put together by the rule of the seam, are the chain's rows."""
    head = rig.devchain.describe()["head"]
    for output, table in enumerate(("blocks", "transactions", "logs")):
        found = await rig.seam("live", "follow", "compact", output, table)
        assert found == truth(rig.devchain, table, 0, head), table


async def test_the_tip_is_followed_through_reorgs_and_compacted_without_a_row_lost_or_doubled(rig: Rig) -> None:
    await rig.deploy(FOLLOW)
    with watched(rig.devchain.node("a")) as node:
        await follow(rig, node)
    assert await rig.failures() == []
    compacted = await rig.cold("live", "compact")
    assert compacted is not None
    assert [row["block_number"] for row in rows_of(compacted, "blocks")][:80] == list(range(80))
    assert min(rig.hot_marks(await rig.version("live", "follow"))) >= 20  # what is cold has left the hot table


async def follow(rig: Rig, node: Watched) -> None:
    async with working(rig.worker_on(rig.pool(node))):
        version = await rig.version("live", "follow")
        await rig.until_followed(version)
        for depth in (1, 3, 12):
            rig.devchain.mine(5)
            rig.devchain.reorg(depth)
            await rig.until_followed(version)
        await until_looked(node)  # it has caught up, and only looks
        rig.devchain.reorg(4, 4)  # as high as before: only its hashes tell
        await rig.until_followed(version)
        rig.devchain.mine(30)
        await rig.until_followed(version)
        await rig.settled()
        await rig.until_equal(lambda: equal(rig))
