"""How long an endpoint rests, and that what is known of a pool's endpoints is known to all of a process."""

from __future__ import annotations

import time

from trace_platform.chain.health import Health
from trace_platform.chain.rpc_pool import Endpoint, RpcPool
from trace_platform.errors import ProviderThrottled, ProviderUnavailable


def pool(name: str, **settings: object) -> RpcPool:
    return RpcPool(name, 1, (Endpoint("http://one"), Endpoint("http://two")), **settings)  # type: ignore[arg-type]


def rests(health: Health, failures: int) -> list[float]:
    """How long the first endpoint rests after each of so many failures in a row."""
    one, found = health.standings[0], []
    for _ in range(failures):
        began = time.monotonic()
        one.rests_until = 0.0
        health.failed(one, ProviderUnavailable("down"), began)
        found.append(one.rests_until - began)
    return found


def test_a_rest_doubles_up_to_the_longest_one() -> None:
    found = rests(Health(pool("doubling", rest=1.0, longest_rest=10.0)), 8)
    for failure, seconds in enumerate(found):
        most = min(10.0, 2.0**failure)
        assert most / 2 <= seconds < most + 0.1


def test_thousands_of_failures_in_a_row_are_waited_out() -> None:
    assert max(rests(Health(pool("dead", rest=0.2, longest_rest=15.0)), 5000)) < 15.1


def test_rests_differ_so_that_many_do_not_come_back_at_once() -> None:
    assert len({round(rests(Health(pool("jitter", rest=1.0)), 1)[0], 4) for _ in range(20)}) > 10


def test_a_wait_that_was_asked_for_is_kept_up_to_the_longest_rest() -> None:
    health = Health(pool("asked", rest=0.1, longest_rest=10.0))
    for asked, kept in ((4.0, 4.0), (99.0, 10.0)):
        one, began = health.standings[0], time.monotonic()
        one.rests_until, one.failures = 0.0, 0
        health.failed(one, ProviderThrottled("slower", retry_after=asked), began)
        assert kept <= one.rests_until - began < kept + 0.2


def test_requests_that_fail_together_count_as_one_failure() -> None:
    health = Health(pool("together", rest=5.0))
    one, began = health.standings[0], time.monotonic()
    for _ in range(8):
        health.failed(one, ProviderUnavailable("down"), began)
    assert one.failures == 1
    assert one.rests_until < began + 5.1
    health.worked(one)
    assert one.failures == 0
