"""One fork server for all fault tests, a system of processes for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.systems.processes import Nursery, System, a_system, nursing


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with nursing() as made:
        yield made


@pytest.fixture
async def system(
    anyio_backend: str, nursery: Nursery, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    del anyio_backend
    async with a_system(nursery, state_db, queue_db, tmp_path) as made:
        yield made
