"""A follower sees heads that prove themselves, and can walk back along hashes after a reorg."""

from __future__ import annotations

import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.fetching import QUICK, run_with
from tracelake.chain import tip
from tracelake.errors import ProviderLagged, ProviderLied


def test_heads_are_the_chains(devchain: Devchain) -> None:
    heads = run_with(devchain.pool(**QUICK), tip.heads)
    chain = devchain.chain()
    assert (heads.latest.number, heads.safe.number, heads.finalized.number) == (240, 208, 176)
    made = chain.block(240)
    assert heads.latest == tip.BlockHeader(
        240, bytes.fromhex(made.hash[2:]), bytes.fromhex(made.block.parent_hash[2:]), int(made.block.timestamp, 16)
    )


def test_the_final_block_is_requested_once_and_a_node_that_does_not_know_it_is_no_error(devchain: Devchain) -> None:
    pool = devchain.pool(**QUICK)
    assert run_with(pool, tip.finalized_number) == 176
    for kind in ("null_block", "unknown_method", "throttle_call", "drop", "lie_hash"):
        devchain.fault(kind, method="eth_getBlockByNumber", times=1)
        assert run_with(pool, tip.finalized_number) is None, kind
        assert run_with(pool, tip.finalized_number) == 176, f"{kind}: requested again, the fault is over"


def test_a_head_that_is_not_its_hash_is_a_lie(devchain: Devchain) -> None:
    devchain.fault("lie_hash")
    for call in (tip.heads, lambda client: tip.headers(client, [3, 4], 0)):
        with pytest.raises(ProviderLied):
            run_with(devchain.pool(**QUICK), call)


def test_headers_come_in_the_order_asked_for(devchain: Devchain) -> None:
    chain = devchain.chain()
    found = run_with(
        devchain.pool(batch_size=3, **QUICK), lambda client: tip.headers(client, [9, 2, 200, 5, 4, 3, 1], 0)
    )
    assert [(item.number, item.hash.hex()) for item in found] == [
        (number, chain.block(number).hash[2:]) for number in (9, 2, 200, 5, 4, 3, 1)
    ]


def test_a_header_that_is_not_there_yet_is_lag(devchain: Devchain) -> None:
    with pytest.raises(ProviderLagged, match="9999"):
        run_with(devchain.pool(**QUICK), lambda client: tip.headers(client, [9999], 0))


def test_a_follower_finds_where_a_reorg_began() -> None:
    with running(blocks=50) as moving:
        pool = moving.pool(**QUICK)
        known = {item.number: item for item in run_with(pool, lambda client: tip.headers(client, range(51), 0))}
        left = known[50]
        moving.reorg(7)
        now = run_with(pool, lambda client: tip.headers(client, range(51), 0))
        assert [item.number for item in now if known[item.number] != item] == list(range(44, 51))
        moving.switch(0)
        assert run_with(pool, lambda client: tip.headers(client, [50], 0)) == [left]


def test_headers_come_from_the_endpoint_that_is_asked_and_no_other(devchain: Devchain) -> None:
    devchain.fault("lag", node="late", value=100)
    pool = devchain.pool("late", "here", **QUICK)
    assert {run_with(pool, tip.heads).by for _ in range(4)} == {0, 1}
    assert [header.number for header in run_with(pool, lambda client: tip.headers(client, [240], 1))] == [240]
    with pytest.raises(ProviderLagged, match="late"):
        run_with(pool, lambda client: tip.headers(client, [240], 0))
