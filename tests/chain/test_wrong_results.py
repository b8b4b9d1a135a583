"""No wrong result passes: a node alone that returns one is named, beside an honest one it is ignored."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.chain.devchain import Devchain
from tests.support.chain.fetching import QUICK, assert_true
from tracelake.chain.fetch import fetch_range_sync
from tracelake.errors import ChainMoved, ProviderError, ProviderLied
from tracelake_devchain.faults import KINDS
from tracelake_devchain.wrong_results import LIES

FOUND_WITHOUT_ROOTS = set(LIES) - {"lie_value", "lie_log"}
"""These two change only what a root proves."""
NOT_ABOUT_LOGS = {"lie_value", "lie_sender", "missing_transaction"}
"""Wrong values that are not fetched when only logs are needed."""


@pytest.mark.parametrize("kind", LIES)
def test_a_liar_is_named(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="liar")
    with pytest.raises((ProviderLied, ChainMoved)) as raised:
        fetch_range_sync(devchain.pool("liar", **QUICK), 0, 60)
    assert raised.value.where == "liar"
    assert raised.value.retryable


@pytest.mark.parametrize("kind", LIES)
def test_a_liar_beside_an_honest_node_does_no_harm(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="liar")
    assert_true(devchain, fetch_range_sync(devchain.pool("liar", "honest", batch_size=20, **QUICK), 0, 60))


@pytest.mark.parametrize("kind", sorted(FOUND_WITHOUT_ROOTS))
def test_most_lies_are_found_without_proving_roots(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="liar")
    with pytest.raises((ProviderLied, ChainMoved)):
        fetch_range_sync(devchain.pool("liar", verify_roots=0.0, **QUICK), 0, 60)


@pytest.mark.parametrize("kind", sorted(set(LIES) - NOT_ABOUT_LOGS - {"missing_receipt", "lie_log"}))
def test_logs_alone_are_held_against_the_header(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="liar")
    with pytest.raises((ProviderLied, ChainMoved)):
        fetch_range_sync(devchain.pool("liar", verify_roots=0.0, **QUICK), 0, 60, {"logs"})


@pytest.mark.parametrize("kind", ["lie_hash", "lie_parent"])
def test_headers_alone_are_held_against_each_other(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="liar", times=1)
    pool = devchain.pool("liar", attempts=1, max_concurrency=1)
    with pytest.raises((ProviderLied, ChainMoved)):
        fetch_range_sync(pool, 0, 60, {"blocks"})


@given(
    faults=st.lists(
        st.tuples(st.sampled_from(sorted(set(KINDS) - {"slow"})), st.sampled_from(["a", "b", "*"]), st.integers(1, 6)),
        max_size=5,
    ),
    start=st.integers(0, 200),
    length=st.integers(1, 40),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_nodes_do_a_range_is_true_or_refused_and_one_honest_node_is_enough(
    devchain: Devchain, faults: list[tuple[str, str, int]], start: int, length: int
) -> None:
    devchain.clear()
    for kind, node, times in faults:
        devchain.fault(kind, node=node, times=times, value=0.01 if kind == "throttle" else 3)
    honest = {"a", "b"}.difference(*({"a", "b"} if node == "*" else {node} for _, node, _ in faults))
    pool = devchain.pool("a", "b", batch_size=10, **QUICK)
    with contextlib.nullcontext() if honest else contextlib.suppress(ProviderError):
        assert_true(devchain, fetch_range_sync(pool, start, min(240, start + length)))
