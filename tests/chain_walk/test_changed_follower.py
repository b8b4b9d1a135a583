"""A changed `block_follower` follows the chain beside the active one, and takes its place when it has come as far."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.releases import promoted, started, state_of
from tests.support.systems.chain import FOLLOW, ChainSystem, equal
from tests.support.systems.walk import working
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

CHANGED = FOLLOW.replace("batch: 25", "batch: 25, confirmations: 8")
BUILT = """
SELECT s.dataset_version FROM release_members m
  JOIN dag_version_datasets s ON s.dag_version_id = m.dag_version_id
  JOIN datasets d ON d.id = s.dataset_uuid AND d.producer_job_name = 'follow' AND d.producer_output_index = 0
 WHERE m.builds
"""
COMPACTED = """
SELECT lower(p.block_range) AS start, upper(p.block_range) AS stop
  FROM partition_versions p WHERE p.dataset_version = $1 AND p.valid_to IS NULL
"""


async def test_both_follow_through_reorgs_and_the_new_one_serves_every_row_from_its_promotion_on(
    system: ChainSystem,
) -> None:
    await system.deploy(FOLLOW)
    control, org = system.walk.control, system.walk.org
    async with working(system.worker()):
        old = await system.version("live", "follow")
        await system.until_followed(old)
        release = await started(control, org, CHANGED)
        [(new,)] = await control.pool.fetch(BUILT)
        assert new != old
        await system.until_followed(new)
        for depth in (3, 12):
            system.devchain.mine(5)
            system.devchain.reorg(depth)
            for version in (old, new):
                await system.until_followed(version)

        async def is_ready() -> bool:
            return await state_of(control, org, release) == "Ready"

        await until(is_ready, "the release is ready")
        assert await system.version("live", "follow") == old
        await promoted(control, org, release)
        assert await system.version("live", "follow") == new
        system.devchain.mine(30)
        await system.until_followed(new)
        await system.settled()
        await system.until_equal(lambda: equal(system))
        await system.until_equal(lambda: has_every_block(system))
    assert await system.failures() == []


async def has_every_block(system: ChainSystem) -> None:
    """In the generations that serve alone: what the former ones hold does not count."""
    compacted = await system.walk.control.pool.fetch(COMPACTED, await system.version("live", "compact"))
    cold = {number for row in compacted for number in range(row["start"], row["stop"])}
    hot = system.hot_marks(await system.version("live", "follow"))
    assert cold | set(hot) == set(range(system.devchain.describe()["head"] + 1))
