"""How long an endpoint rests, and that what is known of a pool's endpoints is known to all of a process."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from tests.support.chain.devchain import Devchain
from tests.support.chain.proxies import rewriting_proxy
from tests.support.waiting import SECONDS
from tracelake.chain.fetch import fetch_range_sync
from tracelake.chain.nodes.health import Health, health_of
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.chain.nodes.shared_semaphore import SharedSemaphore
from tracelake.errors import ProviderThrottled, ProviderUnavailable


def pool(name: str, **settings: object) -> RpcPool:
    return RpcPool(name, 1, (Endpoint("http://one"), Endpoint("http://two")), **settings)  # type: ignore[arg-type]


def rests(health: Health, failures: int) -> list[tuple[float, float]]:
    """How long the first endpoint rests after each of so many failures in a row: at least so long, and at most.

    They differ by the time that the call took, which on a busy machine may be any.
    """
    standing, found = health.standings[0], []
    for _ in range(failures):
        began = time.monotonic()
        standing.rests_until = 0.0
        health.failed(standing, ProviderUnavailable("down"), began)
        found.append((standing.rests_until - time.monotonic(), standing.rests_until - began))
    return found


def test_a_rest_doubles_up_to_the_longest_one() -> None:
    found = rests(Health(pool("doubling", rest=1.0, longest_rest=10.0)), 8)
    for failure, (at_least, at_most) in enumerate(found):
        most = min(10.0, 2.0**failure)
        assert at_least <= most
        assert at_most >= most / 2


def test_thousands_of_failures_in_a_row_are_waited_out() -> None:
    assert max(at_least for at_least, _ in rests(Health(pool("dead", rest=0.2, longest_rest=15.0)), 5000)) <= 15.0


def test_rests_differ_so_that_many_do_not_come_back_at_once() -> None:
    assert len({round(rests(Health(pool("jitter", rest=1.0)), 1)[0][1], 4) for _ in range(20)}) > 10


def test_retry_after_is_respected_up_to_the_longest_rest() -> None:
    health = Health(pool("asked", rest=0.1, longest_rest=10.0))
    for requested, expected in ((4.0, 4.0), (99.0, 10.0)):
        standing, began = health.standings[0], time.monotonic()
        standing.rests_until, standing.failures = 0.0, 0
        health.failed(standing, ProviderThrottled("slower", retry_after=requested), began)
        assert standing.rests_until - time.monotonic() <= expected <= standing.rests_until - began


def test_requests_that_fail_together_count_as_one_failure() -> None:
    health = Health(pool("together", rest=5.0))
    standing, began = health.standings[0], time.monotonic()
    for _ in range(8):
        health.failed(standing, ProviderUnavailable("down"), began)
    assert standing.failures == 1
    assert standing.rests_until <= time.monotonic() + 5.0
    health.worked(standing)
    assert standing.failures == 0


def counting(devchain: Devchain, seen: list[tuple[float, int]], pause: float = 0.0) -> AbstractContextManager[str]:
    """A node that notes when each request came, and how many calls were in it."""

    def note(calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.append((time.monotonic(), len(calls)))
        time.sleep(pause)
        return answers

    return rewriting_proxy(devchain.url, note)


def test_a_ranges_limits_are_those_of_all_ranges_together(devchain: Devchain) -> None:
    """Ten ranges, one after the other, as a Spark worker fetches them: 60 calls in all, at 25 a second."""
    seen: list[tuple[float, int]] = []
    with counting(devchain, seen) as url:
        began = time.monotonic()  # not when the first one came: that one may have been held up, and the last one not
        limited = RpcPool("limited", devchain.chain_id, (Endpoint(url, "one"),), requests_per_second=25, batch_size=100)
        for place in range(10):
            fetch_range_sync(limited, 5 * place, 5 * place + 4, {"blocks"})
    assert sum(calls for _, calls in seen) == 60
    assert seen[-1][0] - began >= (60 - seen[-1][1]) / 25


def test_a_batch_counts_as_its_calls(devchain: Devchain) -> None:
    """At no time were there more than those of the seconds before and of one batch, which has a second's at most."""
    seen: list[tuple[float, int]] = []
    with counting(devchain, seen) as url:
        began = time.monotonic()
        limited = RpcPool("batches", devchain.chain_id, (Endpoint(url, "one"),), requests_per_second=20, batch_size=100)
        fetch_range_sync(limited, 0, 49, {"blocks"})
    assert max(calls for _, calls in seen) <= 20
    came = 0
    for when, calls in sorted(seen):  # one may come later than it was sent, and so near to the next one; never sooner
        came += calls
        assert came <= 20 * (when - began) + 20


def test_what_was_learnt_of_a_node_is_known_to_the_next_range(devchain: Devchain) -> None:
    learnt = devchain.pool("small", rest=0.01)
    devchain.fault("refuse_batch", node="small", value=3)
    fetch_range_sync(learnt, 0, 20, {"blocks"})
    assert 1 <= health_of(learnt).standings[0].batch_size <= 3
    assert health_of(pickle.loads(pickle.dumps(learnt))) is health_of(learnt)  # noqa: S301 - as Spark sends it


def test_a_rest_outlasts_the_range_that_caused_it(devchain: Devchain) -> None:
    tired = devchain.pool("tired", "fresh", rest=30.0, longest_rest=60.0)
    devchain.fault("drop", node="tired")
    fetch_range_sync(tired, 0, 20, {"blocks"})
    devchain.clear()
    assert health_of(tired).standings[0].rests_until > time.monotonic() + 10


def test_no_more_requests_are_under_way_than_allowed_over_all_threads(devchain: Devchain) -> None:
    under_way, most, lock = [0], [0], threading.Lock()

    def watch(_: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.01)
        with lock:
            under_way[0] -= 1
        return answers

    with rewriting_proxy(devchain.url, watch) as url:
        narrow = RpcPool("narrow", devchain.chain_id, (Endpoint(url, "one"),), max_concurrency=3, batch_size=4)
        with ThreadPoolExecutor(4) as threads:
            done = threads.map(lambda place: fetch_range_sync(narrow, 40 * place, 40 * place + 39), range(4))
            assert [outcome.start for outcome in done] == [0, 40, 80, 120]
    assert most[0] == 3


def test_calls_go_in_batches(devchain: Devchain) -> None:
    seen: list[tuple[float, int]] = []
    with counting(devchain, seen) as url:
        fetch_range_sync(RpcPool("many", devchain.chain_id, (Endpoint(url, "one"),), batch_size=40), 0, 99)
    sizes = sorted(calls for _, calls in seen)
    assert sum(sizes) == 200 + sizes.count(1)  # a block and its receipts, and who it is
    assert sizes.count(40) == 5


def test_a_canceled_wait_for_a_place_leaves_no_place_taken() -> None:
    async def main() -> None:
        slots = SharedSemaphore(1)
        async with slots:
            waits = [asyncio.create_task(_hold(slots)) for _ in range(3)]
            await asyncio.sleep(0)
            waits[0].cancel()
            await asyncio.sleep(0)
        waits[1].cancel()  # its turn was announced already
        await asyncio.gather(*waits, return_exceptions=True)
        async with asyncio.timeout(SECONDS), slots:
            pass

    asyncio.run(main())


async def _hold(slots: SharedSemaphore) -> None:
    async with slots:
        await asyncio.sleep(0)


def test_steps_that_start_anywhere_ask_each_endpoint_first_although_each_step_takes_a_whole_round() -> None:
    health = Health(pool("torn"))
    assert {first_of_two_calls(health) for _ in range(100)} == {0}
    begun = set()
    for _ in range(100):
        health.start_anywhere()
        begun.add(first_of_two_calls(health))
    assert begun == {0, 1}


def first_of_two_calls(health: Health) -> int:
    first, _ = (asyncio.run(health.choose(set())) for _ in range(2))
    return first.place
