"""A dev chain as a real process, and the real data where it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trace_platform.chain.devchain.handle import Devchain, running

BLOCKS = 240


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real blocks and files that nobody here made; they lie beside the checkout, where there are any."""
    told = os.environ.get("TRACE_TEST_SHARED_DATA")
    place = Path(told) if told else Path(__file__).parents[3] / "shared" / "data"
    if not (place / "execution-apis").is_dir():
        pytest.skip(f"the real data is not at {place}")
    return place


@pytest.fixture(scope="session")
def still_chain() -> Iterator[Devchain]:
    """One server for all tests that do not move its chain."""
    with running(blocks=BLOCKS) as devchain:
        yield devchain


@pytest.fixture
def devchain(still_chain: Devchain) -> Iterator[Devchain]:
    yield still_chain
    still_chain.clear()
