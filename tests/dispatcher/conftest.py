from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.dispatcher.control import Org, an_org, control_for
from tests.support.operators import registered
from tracelake.dispatcher.control import Control


@pytest.fixture
async def control(
    request: pytest.FixtureRequest, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[Control]:
    """A Dispatcher's verbs, with the operators that the test's module names in `OPERATORS`, and Trace's own."""
    with registered(**getattr(request.module, "OPERATORS", {})):
        async with control_for(state_db, queue_db, tmp_path) as opened:
            yield opened


@pytest.fixture
async def pair(
    request: pytest.FixtureRequest, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[tuple[Control, Control]]:
    """Two replicas of it, over the same databases."""
    with registered(**getattr(request.module, "OPERATORS", {})):
        async with (
            control_for(state_db, queue_db, tmp_path, replica="one") as first,
            control_for(state_db, queue_db, tmp_path, replica="two") as second,
        ):
            yield first, second


@pytest.fixture
async def org(control: Control) -> Org:
    return await an_org(control.pool)
