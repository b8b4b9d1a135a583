"""Fixtures of signing keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.identity.key_rotation import World
from tracelake.store.db import open_pool


@pytest.fixture
async def world(state_db: str, tmp_path: Path) -> AsyncIterator[World]:
    async with open_pool(state_db, name="test", max_size=4) as pool:
        yield World(pool, tmp_path / "keys")
