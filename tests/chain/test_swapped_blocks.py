"""A node that answers a call with the result of another is named, and its results are not used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.chain.devchain import Devchain
from tests.support.chain.proxies import rewriting_proxy
from tests.support.waiting import SECONDS
from tracelake.chain.fetch import fetch_range_sync
from tracelake.chain.nodes.rpc_pool import Endpoint, RpcPool
from tracelake.errors import ProviderLied


@contextmanager
def swapping(devchain: Devchain, given: str, to: str) -> Iterator[RpcPool]:
    """A node in front of the dev chain: every call of kind `to` gets the result of one of kind `given`."""

    def swap(calls: list[dict[str, Any]], answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        method = {call["id"]: call["method"] for call in calls}
        results = [answer["result"] for answer in answers if method[answer["id"]] == given]
        return [
            {**answer, "result": results[0]} if method[answer["id"]] == to and results else answer for answer in answers
        ]

    with rewriting_proxy(devchain.url, swap) as url:
        yield RpcPool("devchain", devchain.chain_id, (Endpoint(url, "mixed up"),), timeout=SECONDS)


@pytest.mark.parametrize(
    ("given", "to", "message"),
    [
        ("eth_getBlockReceipts", "eth_getBlockByNumber", "receipts were answered for block"),
        ("eth_getBlockByNumber", "eth_getBlockReceipts", "a block was answered for the receipts of block"),
    ],
)
def test_the_result_of_another_call_is_refused(devchain: Devchain, given: str, to: str, message: str) -> None:
    with swapping(devchain, given, to) as pool, pytest.raises(ProviderLied, match=message) as raised:
        fetch_range_sync(pool, 0, 20)
    assert raised.value.where == "mixed up"
