"""A dev chain as a real process, and the real data where it is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trace_platform.chain.devchain.handle import Devchain, running

BLOCKS = 240


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real blocks and files that nobody here made; they lie beside the checkout, where there are any."""
    for checkout in _checkouts():
        place = checkout.parent / "shared" / "data"
        if (place / "execution-apis").is_dir():
            return place
    pytest.skip("there is no shared/data beside the checkout")


def _checkouts() -> Iterator[Path]:
    """The one we stand in, and the one that it is a worktree of."""
    here = Path(__file__).parents[2]
    yield here
    asked = ["git", "-C", str(here), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        yield Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()).parent


@pytest.fixture(scope="session")
def still_chain() -> Iterator[Devchain]:
    """One server for all tests that do not move its chain."""
    with running(blocks=BLOCKS) as devchain:
        yield devchain


@pytest.fixture
def devchain(still_chain: Devchain) -> Iterator[Devchain]:
    yield still_chain
    still_chain.clear()
