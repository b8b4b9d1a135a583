"""What one endpoint cannot prove, a second one confirms; who disagrees is named, and nothing of the range counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import msgspec
import pytest
import structlog

from tests.support.chain.devchain import Devchain
from tests.support.chain.fetching import QUICK, assert_true
from tests.support.chain.proxies import Change, rewriting_proxy
from tracelake.chain.fetch import fetch_range_sync
from tracelake.chain.nodes.responses import Header
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.chain.proofs.encode import header_hash
from tracelake.errors import ChainMoved, ProviderLied

FIRST, LAST = 30, 49
Answers = list[dict[str, Any]]


@contextmanager
def beside(devchain: Devchain, change: Change, *others: str, **settings: Any) -> Iterator[RpcPool]:
    """A node that changes its answers, and others that do not."""
    with rewriting_proxy(devchain.url, change) as url:
        honest = [Endpoint(devchain.node(name), name) for name in others]
        yield RpcPool("mixed", devchain.chain_id, (Endpoint(url, "inventor"), *honest), **(QUICK | settings))


def invented(calls: Answers, answers: Answers) -> Answers:
    """Another state root in the last block, and everything that names its hash made to fit: it proves itself."""
    calls_by_id = {call["id"]: call for call in calls}
    of_last = [item for item in answers if calls_by_id[item["id"]]["params"][:1] == [hex(LAST)]]
    for answer in of_last:
        if isinstance(answer["result"], dict):
            block = answer["result"]
            block["stateRoot"] = "0x" + "ee" * 32
            block["hash"] = _hash(block)
            for tx in block["transactions"]:
                if isinstance(tx, dict):
                    tx["blockHash"] = block["hash"]
    hashes = [item["result"]["hash"] for item in of_last if isinstance(item["result"], dict)]
    for answer in of_last:
        if isinstance(answer["result"], list):
            for receipt in answer["result"]:
                for item in (receipt, *receipt["logs"]):
                    item["blockHash"] = hashes[0]
    return answers


def _hash(block: dict[str, Any]) -> str:
    return "0x" + header_hash(msgspec.convert(block, Header)).hex()


def test_a_last_block_that_one_endpoint_made_up_is_not_believed(devchain: Devchain) -> None:
    with beside(devchain, invented, "honest") as pool, pytest.raises(ChainMoved) as named:
        fetch_range_sync(pool, FIRST, LAST)
    assert named.value.retryable
    assert {"inventor", "honest"} == set(str(named.value.where).split(", "))
    assert all(label in named.value.message for label in ("inventor", "honest"))


def test_an_endpoint_alone_is_believed_about_its_last_block(devchain: Devchain) -> None:
    """As docs/concepts/chain_verification.md says: nothing else is there to compare it with."""
    with beside(devchain, invented) as pool:
        fetched = fetch_range_sync(pool, FIRST, LAST)
    assert fetched.tables["blocks"]["state_root"][-1].as_py() == b"\xee" * 32


@pytest.mark.parametrize("kind", ["lie_parent", "lie_receipts_root", "lie_transactions_root"])
def test_an_endpoint_that_is_wrong_at_times_stops_no_fetch_beside_an_honest_one(devchain: Devchain, kind: str) -> None:
    """Also if it is wrong only about the last block, when it is asked to confirm it."""
    for node, times in product("ab", range(1, 7)):
        devchain.clear()
        devchain.fault(kind, node=node, times=times)
        assert_true(devchain, fetch_range_sync(devchain.pool("a", "b", batch_size=10, **QUICK), 0, 1))


@pytest.mark.parametrize("kind", ["drop", "throttle", "error", "lag", "null_block", "lie_hash", "lie_parent"])
def test_an_endpoint_that_cannot_testify_stops_no_fetch_and_is_logged(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="mute", value=200 if kind == "lag" else 0)
    with structlog.testing.capture_logs() as logs:
        assert_true(devchain, fetch_range_sync(devchain.pool("honest", "mute", **QUICK), FIRST, 240))
    assert [log["by"] for log in logs if log["event"] == "block_unconfirmed"] == ["honest"]


def test_a_laggard_is_waited_for(devchain: Devchain) -> None:
    devchain.fault("lag", node="late", method="eth_getBlockByNumber", value=200, times=2)
    with structlog.testing.capture_logs() as logs:
        assert_true(devchain, fetch_range_sync(devchain.pool("here", "late", **QUICK), FIRST, LAST))
    assert not [log for log in logs if log["event"] == "block_unconfirmed"]


def test_an_endpoint_that_is_slow_is_not_waited_for(devchain: Devchain) -> None:
    devchain.fault("slow", node="slow", value=20)
    with structlog.testing.capture_logs() as logs:
        assert_true(devchain, fetch_range_sync(devchain.pool("here", "slow", **QUICK), FIRST, LAST))
    assert [log["by"] for log in logs if log["event"] == "block_unconfirmed"] == ["here"]


@pytest.mark.parametrize("kind", ["drop", "slow"])
def test_a_third_endpoint_testifies_when_the_second_cannot(devchain: Devchain, kind: str) -> None:
    devchain.fault(kind, node="mute", value=20)
    with beside(devchain, invented, "mute", "honest") as pool, pytest.raises(ChainMoved, match="honest"):
        fetch_range_sync(pool, FIRST, LAST)


def forked(calls: Answers, answers: Answers) -> Answers:
    """A fork that begins anew in each request."""
    parent = ""
    calls_by_id = {call["id"]: call for call in calls}
    for answer in answers:
        if calls_by_id[answer["id"]]["method"] == "eth_getBlockByNumber":
            block = answer["result"]
            block["stateRoot"] = "0x" + "ee" * 32
            block["parentHash"] = parent or block["parentHash"]
            parent = block["hash"] = _hash(block)
    return answers


def test_endpoints_that_are_on_different_forks_are_both_named(devchain: Devchain) -> None:
    with beside(devchain, forked, "honest", batch_size=5) as pool, pytest.raises(ChainMoved) as named:
        fetch_range_sync(pool, FIRST, LAST, {"blocks"})
    assert {"inventor", "honest"} == set(str(named.value.where).split(", "))


def test_an_endpoint_whose_answers_do_not_follow_each_other_is_named(devchain: Devchain) -> None:
    with beside(devchain, forked, batch_size=5) as pool, pytest.raises(ChainMoved, match="of inventor") as named:
        fetch_range_sync(pool, FIRST, LAST, {"blocks"})
    assert named.value.where == "inventor"


def _without_price(_: Answers, answers: Answers) -> Answers:
    return _priced(answers, None)


def _priced(answers: Answers, price: str | None) -> Answers:
    for answer in answers:
        if isinstance(answer["result"], dict):
            for tx in answer["result"]["transactions"]:
                if isinstance(tx, dict) and tx["type"] not in ("0x0", "0x1"):
                    tx.pop("gasPrice")
                    if price:
                        tx["gasPrice"] = price
    return answers


@pytest.mark.parametrize("verify_roots", [1.0, 0.0])
def test_a_price_that_is_left_out_is_what_fees_and_header_make(devchain: Devchain, verify_roots: float) -> None:
    with beside(devchain, _without_price, verify_roots=verify_roots) as pool:
        fetched = fetch_range_sync(pool, 0, LAST)
    assert set(fetched.tables["transactions"]["transaction_type"].to_pylist()) >= {2, 3, 4}
    assert_true(devchain, fetched)


def test_a_price_that_fees_and_header_do_not_make_is_a_lie(devchain: Devchain) -> None:
    def wrong(_: Answers, answers: Answers) -> Answers:
        return _priced(answers, "0x1")

    with beside(devchain, wrong) as pool, pytest.raises(ProviderLied, match=r"inventor: .*gas price"):
        fetch_range_sync(pool, 0, LAST)


def test_fees_that_a_kind_of_transaction_does_not_have_are_not_believed(devchain: Devchain) -> None:
    def more(_: Answers, answers: Answers) -> Answers:
        for answer in answers:
            if isinstance(answer["result"], dict):
                for tx in answer["result"]["transactions"]:
                    if isinstance(tx, dict) and tx["type"] in ("0x0", "0x1"):
                        tx |= {"maxFeePerGas": "0x5", "maxPriorityFeePerGas": "0x5"}
        return answers

    with beside(devchain, more) as pool:
        assert_true(devchain, fetch_range_sync(pool, 0, LAST))
