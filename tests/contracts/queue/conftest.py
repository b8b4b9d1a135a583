"""Each adapter of the `Queue` port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.queues import (
    Backend,
    closing,
    pgqueue,
    sqs,
)
from tracelake.ports import (
    Queue,
)


@pytest.fixture(params=["pgqueue", "sqs"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return make_backend(request)


@pytest.fixture(params=["pgqueue"])
def fair_backend(request: pytest.FixtureRequest) -> Backend:
    """Those in which groups can be seen to take turns. SQS has fair queues, but moto has not."""
    return make_backend(request)


def make_backend(request: pytest.FixtureRequest) -> Backend:
    made: dict[str, Callable[[], Backend]] = {
        "pgqueue": lambda: pgqueue(request.getfixturevalue("queue_db"), request.getfixturevalue("queue_role")),
        "sqs": lambda: sqs(request.getfixturevalue("moto")),
    }
    return made[request.param]()


@pytest.fixture
async def queue(backend: Backend) -> AsyncIterator[Queue]:
    async with closing(backend.open()) as opened:
        yield opened


@pytest.fixture
async def fair_queue(fair_backend: Backend) -> AsyncIterator[Queue]:
    async with closing(fair_backend.open()) as opened:
        yield opened
