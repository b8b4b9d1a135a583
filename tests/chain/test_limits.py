"""A worker's share of the limits of a pool: what expires is not used, and what executors use counts."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from tests.support.waiting import SECONDS, until
from tracelake.chain.nodes.limits import Limits
from tracelake.chain.nodes.limits_server import RemoteLimits, serve_limits
from tracelake.chain.nodes.rpc_pool import Limiter
from tracelake.errors import ProviderUnavailable, SettingsError

pytestmark = pytest.mark.anyio


def a_share(in_flight: int, rate: float | None = None, seconds: float = SECONDS) -> Limits:
    limits = Limits(0, 0.0, name="main", until=-math.inf)
    limits.set(in_flight, rate, time.monotonic() + seconds)
    return limits


class Requests:
    """Requests that last until they are ended."""

    def __init__(self) -> None:
        self.under_way = 0
        self.end = asyncio.Event()

    async def send(self, limits: Limits | RemoteLimits) -> None:
        async with limits.permit(0, 1):
            self.under_way += 1
            try:
                await self.end.wait()
            finally:
                self.under_way -= 1


async def test_a_share_that_expires_ends_what_is_under_way_and_nothing_starts_until_it_is_renewed() -> None:
    limits, requests = a_share(2, seconds=0.3), Requests()
    async with serve_limits({"main": limits}, "127.0.0.1") as limiter:
        here = [asyncio.create_task(requests.send(limits)) for _ in range(1)]
        there = [asyncio.create_task(requests.send(RemoteLimits(limiter, "main"))) for _ in range(1)]
        await until(lambda: requests.under_way == 2, "both are under way")
        for outcome in await asyncio.gather(*here, *there, return_exceptions=True):
            assert isinstance(outcome, ProviderUnavailable)
            assert "expired" in outcome.message
        waits = asyncio.create_task(requests.send(limits))
        await asyncio.sleep(0.2)
        assert requests.under_way == 0
        limits.set(1, None, time.monotonic() + SECONDS)
        await until(lambda: requests.under_way == 1, "it is sent with the new share")
        requests.end.set()
        await waits


async def test_what_a_worker_and_its_executors_have_under_way_is_its_share() -> None:
    limits, requests = a_share(3), Requests()
    async with serve_limits({"main": limits}, "127.0.0.1") as limiter, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(requests.send(limits if number % 2 else RemoteLimits(limiter, "main")))
        await until(lambda: requests.under_way == 3 and limits.lacks, "the share is used, and others wait")
        assert limits.use().wanted >= 3
        limits.set(1, None, time.monotonic() + SECONDS)
        assert limits.use().held == 3, "what is under way is held, although the share is smaller now"
        requests.end.set()
        await until(lambda: limits.use().used == 0, "all places are free again")


async def test_an_executor_that_dies_gives_its_place_back() -> None:
    limits, requests = a_share(1), Requests()
    async with serve_limits({"main": limits}, "127.0.0.1") as limiter:
        reader, writer = await asyncio.open_connection(limiter.host, limiter.port)
        writer.write(f"{limiter.token} main 0 1 \n".encode())
        assert await reader.readline() == b"go\n"
        waits = asyncio.create_task(requests.send(limits))
        writer.transport.abort()
        await until(lambda: requests.under_way == 1, "the place is free again")
        requests.end.set()
        await waits


async def test_nothing_is_permitted_without_the_token_or_for_a_pool_that_is_not_there() -> None:
    limits = a_share(1)
    async with serve_limits({"main": limits}, "127.0.0.1") as limiter:
        for line in (
            "wrong main 0 1 \n",
            f"{limiter.token} other 0 1 \n",
            "\n",
            f"{limiter.token} main x 1 \n",
            "é" * 5000,
        ):
            reader, writer = await asyncio.open_connection(limiter.host, limiter.port)
            writer.write(line.encode())
            writer.write_eof()
            with pytest.raises((ConnectionError, AssertionError)):
                assert await reader.readline() == b"go\n"
            writer.close()
    assert limits.use().wanted == 0
    assert limiter.token not in repr(limiter)


async def test_limits_that_cannot_be_asked_are_an_error_that_says_what_to_set() -> None:
    with pytest.raises(ProviderUnavailable, match="cannot be asked") as refused:
        async with RemoteLimits(Limiter("127.0.0.1", 1, "token"), "main").permit(0, 1):
            pass
    assert "worker.limits_host" in str(refused.value.hint)
    with pytest.raises(SettingsError, match="cannot listen"):
        async with serve_limits({}, "203.0.113.7"):
            pass


async def test_more_calls_than_a_seconds_share_wait_before_they_are_sent() -> None:
    """So that several workers with large batches do not exceed the limit in one second together."""
    limits, began = a_share(2, rate=10.0), time.monotonic()
    async with limits.permit(0, 12):
        assert time.monotonic() - began >= 0.2
    async with limits.permit(1, 10):
        assert time.monotonic() - began < SECONDS
