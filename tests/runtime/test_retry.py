"""The one way to wait for what does not answer."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from tracelake.errors import Conflict, Unavailable
from tracelake.runtime import retry
from tracelake.runtime.retry import BACKOFF, delays, retry_with_backoff

pytestmark = pytest.mark.anyio


class Service:
    """Does not answer the first calls."""

    def __init__(self, outages: int, stop: asyncio.Event | None = None) -> None:
        self.calls, self._outages, self._stop = 0, outages, stop

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._outages:
            if self._stop is not None:
                self._stop.set()
            raise Unavailable("away")
        return "answer"


async def test_it_calls_until_there_is_an_answer() -> None:
    service = Service(3)
    assert await retry_with_backoff(service) == "answer"
    assert service.calls == 4


async def test_a_stop_ends_it_with_the_outage_and_without_another_call() -> None:
    stop = asyncio.Event()
    service = Service(3, stop)
    with pytest.raises(Unavailable):
        await retry_with_backoff(service, stop)
    assert service.calls == 1


async def test_it_ends_when_the_answer_no_longer_matters() -> None:
    service = Service(100)
    with pytest.raises(Unavailable):
        await retry_with_backoff(service, is_over=lambda: service.calls == 3)
    assert service.calls == 3


async def test_a_refusal_is_not_repeated() -> None:
    calls: list[None] = []

    async def refuse() -> None:
        calls.append(None)
        raise Conflict("no")

    with pytest.raises(Conflict):
        await retry_with_backoff(refuse)
    assert len(calls) == 1


def test_delays_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry._random, "random", lambda: 1.0)
    found = list(islice(delays(), 8))
    assert found[:3] == [BACKOFF.first_seconds, 2 * BACKOFF.first_seconds, 4 * BACKOFF.first_seconds]
    assert max(found) == found[-1] == BACKOFF.longest_seconds
