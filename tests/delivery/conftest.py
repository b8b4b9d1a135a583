"""A system for each test: Gateway, Dispatcher and the delivery process's API on real databases, and a receiver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.systems.delivery import DeliverySystem, Receiver, delivery_system


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
async def system(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path, receiver: Receiver
) -> AsyncIterator[DeliverySystem]:
    async with delivery_system(state_db, queue_db, data_db, tmp_path, receiver) as made:
        yield made
