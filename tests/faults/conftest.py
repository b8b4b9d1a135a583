"""One fork server for all fault tests, a system of processes for each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.systems.processes import ForkServer, System, a_system


@pytest.fixture
async def system(
    anyio_backend: str, fork_server: ForkServer, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    del anyio_backend
    async with a_system(fork_server, state_db, queue_db, tmp_path) as made:
        yield made
