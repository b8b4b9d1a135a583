"""The quickstart DAG against a real node: backfill, follow, compact, decode; its reorgs show only in parent hashes.

About 20 s on two free cores, once Spark runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chain.anvil import Anvil, anvil, program
from tests.support.chain.quickstart import runs_through_reorgs
from tests.support.systems.chain import ChainSystem

pytestmark = pytest.mark.anyio

NODE = program()


@pytest.fixture
def devchain() -> Iterator[Anvil]:
    """In place of the dev chain."""
    if NODE is None:
        pytest.skip("there is no anvil: `make test` fetches it with npm (tools/get_anvil.py says why it did not)")
    with anvil(NODE) as node:
        yield node


@pytest.mark.long
async def test_the_quickstart_on_a_real_node_through_reorgs_equals_it_row_for_row(
    system: ChainSystem, devchain: Anvil
) -> None:
    def reorg(depth: int) -> None:
        head = devchain.describe()["head"]
        devchain.reorg(depth)
        assert devchain.describe()["head"] == head

    devchain.mine(29)
    await runs_through_reorgs(system, devchain, reorg)
