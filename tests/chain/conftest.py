"""A dev chain as a real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chain.devchain import Devchain, running

BLOCKS = 240


@pytest.fixture(scope="session")
def still_chain() -> Iterator[Devchain]:
    """One server for all tests that do not move its chain."""
    with running(blocks=BLOCKS) as devchain:
        yield devchain


@pytest.fixture
def devchain(still_chain: Devchain) -> Iterator[Devchain]:
    yield still_chain
    still_chain.clear()
