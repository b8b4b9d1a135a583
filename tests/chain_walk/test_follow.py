"""`block_follower` and `parquet_compact` on Spark: hot and cold together equal the chain. Storms: `test_storm.py`."""

from __future__ import annotations

import pytest

from tests.support.chain.proxies import CountingNode, counting_node, until_polled
from tests.support.systems.chain import FOLLOW, ChainSystem, equal, rows_of
from tests.support.systems.walk import working

pytestmark = pytest.mark.anyio


async def test_the_tip_is_followed_through_reorgs_and_compacted_without_a_row_lost_or_doubled(
    system: ChainSystem,
) -> None:
    await system.deploy(FOLLOW)
    with counting_node(system.devchain.node("a")) as node:
        await follow(system, node)
    assert await system.failures() == []
    compacted = await system.cold("live", "compact")
    assert compacted is not None
    assert [row["block_number"] for row in rows_of(compacted, "blocks")][:80] == list(range(80))
    assert min(system.hot_marks(await system.version("live", "follow"))) >= 20  # what is cold has left the hot table


async def follow(system: ChainSystem, node: CountingNode) -> None:
    async with working(system.worker_on(system.pool(node))):
        version = await system.version("live", "follow")
        await system.until_followed(version)
        for depth in (1, 3, 12):
            system.devchain.mine(5)
            system.devchain.reorg(depth)
            await system.until_followed(version)
        await until_polled(node)  # it has caught up, and only looks
        system.devchain.reorg(4, 4)  # as high as before: only its hashes differ
        await system.until_followed(version)
        system.devchain.mine(30)
        await system.until_followed(version)
        await system.settled()
        await system.until_equal(lambda: equal(system))
