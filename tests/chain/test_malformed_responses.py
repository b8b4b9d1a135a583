"""Whatever a node answers, the rows are the chain's or the node is named; an honest one beside it is used instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.chain.devchain import Devchain
from tests.support.chain.fetching import QUICK, run_with
from tests.support.chain.proxies import rewriting_proxy
from tracelake.chain import cross_check, tip
from tracelake.chain.fetch import Fetched, fetch_range_sync
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.chain.schemas import SCHEMAS
from tracelake.errors import ProviderError, SizeRefused, ValueTooLarge
from tracelake_devchain.expected_rows import truth_table

FIRST, LAST = 40, 44
METHODS = ("eth_chainId", "eth_getBlockByNumber", "eth_getBlockReceipts", "eth_getLogs")
DEEP = "a very deep list"
JUNK: list[Any] = [
    None, True, 0, -1, 1.5, 2**63, 2**64, 10**40, "", "0x", "0x0", "0xzz", "mainnet", "-0x5", "0x1_0", " 0x10", "zz10",
    "0x" + "f" * 16, "0x" + "f" * 64, "0x" + "f" * 400, "0x" + "1" * 9001, "\u0661", "é", [], {}, [[]], {"a": []}, DEEP,
]  # fmt: skip
BODIES = [b"", b"null", b"{}", b"[1]", b"\xff\xfe", b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000, b'{"error": "no"}']


class Bend:
    """Changes one value in the answers to one method, until it is reset."""

    def __init__(self) -> None:
        self.url = ""
        self.to()

    def to(self, method: str = "", place: int = 0, junk: Any = None, body: bytes = b"") -> None:
        self.method, self.place, self.junk, self.body = method, place, junk, body

    def __call__(self, calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> bytes | list[dict[str, Any]]:
        if self.body:
            return self.body
        methods = {call["id"]: call["method"] for call in calls}
        for answer in answers:
            if methods[answer["id"]] == self.method:
                holders = list(_holders(answer, "result"))
                holder, key = holders[self.place % len(holders)]
                holder[key] = self._junk(holder[key])
                break
        return json.dumps(answers).replace(f'"{DEEP}"', "[" * 9000 + "]" * 9000).encode()

    def _junk(self, was: Any) -> Any:
        if callable(self.junk):
            return self.junk(was) if isinstance(was, str) else None
        return self.junk


def _holders(holder: Any, key: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value, as what holds it and its key there."""
    yield holder, key
    value = holder[key]
    inner = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for item in inner:
        yield from _holders(value, item)


def _with_zero(text: str) -> str:
    return "0x0" + text[2:]


def _loud(text: str) -> str:
    return text.upper()


def _longer(text: str) -> str:
    return text + "00"


@pytest.fixture(scope="module")
def bend(still_chain: Devchain) -> Iterator[Bend]:
    """One node for all tests here, with a short wait in the cross-check."""
    made = Bend()
    with rewriting_proxy(still_chain.url, made) as made.url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_check, "WAIT_SECONDS", 0.1)
        yield made


def pools(devchain: Devchain, bend: Bend, **more: Any) -> tuple[RpcPool, RpcPool]:
    """Of the bent node alone, and with an honest one beside it."""
    bent, honest = Endpoint(bend.url, "bent"), Endpoint(devchain.node("honest"), "honest")
    settings = QUICK | more
    return (
        RpcPool("alone", devchain.chain_id, (bent,), **settings),
        RpcPool("beside", devchain.chain_id, (bent, honest), **settings),
    )


@pytest.fixture(scope="module")
def truth(still_chain: Devchain) -> dict[str, pa.Table]:
    """Made once: sealing a chain's blocks takes longer than everything else here."""
    chain = still_chain.chain()
    return {name: truth_table(chain, name, FIRST, LAST) for name in SCHEMAS}


def assert_same(fetched: Fetched, truth: dict[str, pa.Table]) -> None:
    for name, table in fetched.tables.items():
        assert table.equals(truth[name]), name


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(
    how=st.tuples(st.sampled_from([set(SCHEMAS), {"blocks", "logs"}]), st.sampled_from([1.0, 0.0])),
    what=st.tuples(st.sampled_from(METHODS), st.integers(0, 400), st.sampled_from([*JUNK, _with_zero, _loud, _longer])),
)
def test_a_value_that_is_none_is_never_believed_and_never_our_crash(
    devchain: Devchain, bend: Bend, truth: dict[str, pa.Table], how: tuple[set[str], float], what: tuple[str, int, Any]
) -> None:
    bend.to(*what)
    tables, verify_roots = how
    alone, beside = pools(devchain, bend, verify_roots=verify_roots)
    try:
        fetched = fetch_range_sync(alone, FIRST, LAST, tables)
    except ProviderError as named:
        assert named.where == "bent"  # noqa: PT017 - it may also go well
        assert "bent" in named.message  # noqa: PT017 - "
        assert len(named.message) < 1000  # noqa: PT017 - "
    else:
        if verify_roots:
            assert_same(fetched, truth)
    if verify_roots:
        assert_same(fetch_range_sync(beside, FIRST, LAST, tables), truth)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[:6].decode(errors="replace"))
def test_a_body_that_is_none_is_never_our_crash(
    devchain: Devchain, bend: Bend, truth: dict[str, pa.Table], body: bytes
) -> None:
    bend.to(body=body or b" ")
    alone, beside = pools(devchain, bend)
    with pytest.raises(ProviderError) as named:
        fetch_range_sync(alone, FIRST, LAST)
    assert named.value.where == "bent"
    assert_same(fetch_range_sync(beside, FIRST, LAST), truth)


def test_a_response_is_not_read_beyond_the_limit(devchain: Devchain, bend: Bend, truth: dict[str, pa.Table]) -> None:
    bend.to(body=b" " * (1 << 20))
    alone, beside = pools(devchain, bend, response_bytes=(1 << 20) - 1)
    with pytest.raises(SizeRefused, match="bent answered with more than 1048575 bytes") as named:
        fetch_range_sync(alone, FIRST, LAST)
    assert named.value.where == "bent"
    assert_same(fetch_range_sync(beside, FIRST, LAST), truth)


def test_a_batch_whose_response_is_too_large_is_fetched_in_smaller_batches(
    devchain: Devchain, truth: dict[str, pa.Table]
) -> None:
    sizes: list[int] = []

    def measured(_: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sizes.append(len(json.dumps(answers)))
        return answers

    with rewriting_proxy(devchain.url, measured) as url:
        whole = RpcPool("whole", devchain.chain_id, (Endpoint(url, "whole"),), **QUICK)  # type: ignore[arg-type]
        fetch_range_sync(whole, FIRST, LAST)
        halves = replace(whole, name="halves", response_bytes=max(sizes) - 1)
        requests = len(sizes)
        assert_same(fetch_range_sync(halves, FIRST, LAST), truth)
    assert len(sizes) > 2 * requests


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: str(junk)[:12])
def test_a_head_that_is_none_is_never_our_crash(devchain: Devchain, bend: Bend, junk: Any) -> None:
    alone, _ = pools(devchain, bend, attempts=1, rest=0.0)
    for place in range(JUNK.index(junk) % 5, 25, 5):
        bend.to("eth_getBlockByNumber", place, junk)
        try:
            run_with(alone, tip.heads)
        except ProviderError as named:
            assert named.where == "bent"  # noqa: PT017 - it may also go well


@pytest.mark.parametrize("output", ["mainnet", "0x", "", "0x" + "f" * 9000, 1337, None])
def test_a_chain_id_that_is_none_names_the_node_and_another_is_asked(
    devchain: Devchain, bend: Bend, truth: dict[str, pa.Table], output: object
) -> None:
    bend.to("eth_chainId", junk=output)
    alone, beside = pools(devchain, bend)
    with pytest.raises(ProviderError) as named:
        fetch_range_sync(alone, FIRST, LAST)
    assert named.value.where == "bent"
    assert_same(fetch_range_sync(beside, FIRST, LAST), truth)


def test_a_fee_that_no_column_holds_is_said_to_be_one(devchain: Devchain) -> None:
    """It is legal, so it is no lie; and cryo's column of it has no more than 64 bits either."""

    def dear(_: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for answer in answers:
            if isinstance(answer["result"], dict):
                for tx in answer["result"]["transactions"]:
                    tx["maxFeePerGas"] = hex(2**70)
        return answers

    with rewriting_proxy(devchain.url, dear) as url:
        pool = RpcPool("dear", devchain.chain_id, (Endpoint(url, "dear"),), verify_roots=0.0, **QUICK)  # type: ignore[arg-type]
        with pytest.raises(ValueTooLarge, match=r"dear: block \d+: .*larger") as named:
            fetch_range_sync(pool, FIRST, LAST)
    assert not named.value.retryable
    assert named.value.where == "dear"
