"""The quickstart DAG on the dev chain, with its files on a real S3 server. About 20 s on two free cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.quickstart import runs_through_reorgs
from tests.support.systems.chain import ChainSystem

pytestmark = pytest.mark.anyio


@pytest.fixture
def devchain() -> Iterator[Devchain]:
    with running(blocks=30, finality=10) as chain:
        yield chain


async def test_the_quickstart_on_s3_through_reorgs_equals_the_chain_row_for_row(
    s3_system: ChainSystem, devchain: Devchain
) -> None:
    def reorg(depth: int) -> None:
        devchain.reorg(depth)

    await runs_through_reorgs(s3_system, devchain, reorg)
