"""The dev chain answers as a node does, is the same every time, and moves and ends on command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.encoding import exchanges
from tests.support.waiting import SECONDS
from tracelake.chain.keccak import keccak
from tracelake.chain.proofs.verify import (
    check_bloom,
    check_header,
    check_link,
    check_logs,
    check_receipts,
    check_receipts_root,
    check_transactions,
    check_transactions_root,
    check_withdrawals_root,
)
from tracelake.errors import InvalidRequest
from tracelake_devchain.block_content import APPROVAL, TRANSFER
from tracelake_devchain.chain import Chain
from tracelake_devchain.journal import describe, rebuild

FULL, HASHES = True, False
"""Of a block: whole transactions, or their hashes."""


def post(url: str, body: Any, content_type: str = "application/json") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": content_type})  # noqa: S310 - our own server
    with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310 - "
        return json.load(response)


def call(devchain: Devchain, method: str, *params: Any) -> Any:
    return post(devchain.url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


def result(devchain: Devchain, method: str, *params: Any) -> Any:
    return call(devchain, method, *params)["result"]


def test_every_block_proves_itself() -> None:
    chain = Chain(seed=3, blocks=150)
    before = None
    for made in chain.blocks(0, 150):
        check_header(made.block, made.number)
        check_transactions(made.block)
        check_transactions_root(made.block)
        check_receipts(made.block, made.receipts)
        check_receipts_root(made.block, made.receipts)
        check_logs(made.block, made.logs)
        check_bloom(made.block, made.logs)
        check_withdrawals_root(made.block)
        if before:
            check_link(before.block, made.block)
        before = made


def test_the_same_seed_makes_the_same_chain_and_another_another() -> None:
    assert Chain(seed=5, blocks=40).block(40).hash == Chain(seed=5, blocks=80).block(40).hash
    assert Chain(seed=6, blocks=40).block(40).hash != Chain(seed=5, blocks=40).block(40).hash


def test_the_chain_is_the_one_it_has_always_been() -> None:
    """Demos and recorded expectations hold on to it: a change of this hash is a change of every dev chain."""
    assert Chain(seed=7, chain_id=1337, blocks=20).block(20).hash == KNOWN


KNOWN = "0x50a967862d8e5beb57b07003bfa19f13cd0d2d049acca2d7685a35326a7c91d6"


def test_a_block_that_was_let_go_is_made_again_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Chain(blocks=60)
    monkeypatch.setattr("tracelake_devchain.chain._KEPT", 10)
    small = Chain(blocks=60)
    assert [small.block(n).full_json for n in range(61)] == [whole.block(n).full_json for n in range(61)]


moves = st.lists(
    st.one_of(
        st.tuples(st.just("mine"), st.integers(1, 6)),
        st.tuples(st.just("reorg"), st.integers(1, 12)),
        st.tuples(st.just("switch"), st.integers(0, 6)),
        st.tuples(st.just("set_head"), st.integers(5, 40)),
    ),
    max_size=12,
)


@given(moves)
@settings(max_examples=40, deadline=None)
def test_after_any_history_of_reorgs_blocks_link_and_the_chain_can_be_rebuilt(history: list[tuple[str, int]]) -> None:
    chain = Chain(seed=2, blocks=20)
    for verb, number in history:
        if verb == "reorg" and number > chain.head:
            continue
        if verb == "switch" and number >= len(chain.branches):
            continue
        getattr(chain, verb)(number)
    hashes = [made.hash for made in chain.blocks(0, chain.head)]
    parents = [made.block.parent_hash for made in chain.blocks(0, chain.head)]
    assert parents[1:] == hashes[:-1]
    assert len(set(hashes)) == len(hashes)
    again = rebuild(describe(chain))
    assert [made.hash for made in again.blocks(0, again.head)] == hashes


def test_a_reorg_replaces_blocks_keeps_some_transactions_and_can_be_undone() -> None:
    chain = Chain(blocks=100)
    before = {made.number: made for made in chain.blocks(81, 100)}
    chain.reorg(20)
    assert chain.head == 101
    assert all(chain.block(number).hash != made.hash for number, made in before.items())
    assert chain.block(80).hash == before[81].block.parent_hash
    old = {tx.hash for made in before.values() for tx in made.block.transactions}
    new = {tx.hash for made in chain.blocks(81, 100) for tx in made.block.transactions}
    assert old & new
    assert old - new
    first = chain.block(95).hash
    chain.reorg(10)
    assert chain.block(95).hash != first
    chain.switch(1)
    assert (chain.head, chain.block(95).hash) == (101, first)
    chain.switch(0)
    assert chain.block(100).hash == before[100].hash
    assert chain.by_hash(first) is not None  # a node remembers what a reorg left behind


@pytest.mark.parametrize("order", [{"depth": 0}, {"depth": 500}, {"depth": 3, "blocks": -1}])
def test_a_reorg_that_cannot_be_is_refused(order: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        Chain(blocks=10).reorg(**order)


def test_blocks_are_answered_by_number_tag_and_hash(devchain: Devchain) -> None:
    chain = devchain.chain()
    latest = result(devchain, "eth_getBlockByNumber", "latest", FULL)
    assert latest["hash"] == chain.block(240).hash
    assert result(devchain, "eth_getBlockByHash", latest["hash"], FULL) == latest
    short = result(devchain, "eth_getBlockByNumber", "0xf0", HASHES)
    assert short["transactions"] == [tx["hash"] for tx in latest["transactions"]]
    tags = {tag: result(devchain, "eth_getBlockByNumber", tag, HASHES)["number"] for tag in ("safe", "finalized")}
    assert tags == {"safe": hex(240 - 32), "finalized": hex(240 - 64)}
    assert result(devchain, "eth_getBlockByNumber", "earliest", HASHES)["number"] == "0x0"
    assert result(devchain, "eth_getBlockByNumber", "0xf1", HASHES) is None
    assert result(devchain, "eth_getBlockByHash", "0x" + "11" * 32, HASHES) is None


def test_receipts_are_answered_by_block_and_by_transaction(devchain: Devchain) -> None:
    made = next(made for made in devchain.chain().blocks(1, 240) if len(made.receipts) > 2)
    receipts = result(devchain, "eth_getBlockReceipts", hex(made.number))
    assert receipts == msgspec.to_builtins(made.receipts)
    assert result(devchain, "eth_getBlockReceipts", made.hash) == receipts
    receipt = result(devchain, "eth_getTransactionReceipt", receipts[2]["transactionHash"])
    assert receipt == receipts[2]
    assert result(devchain, "eth_getTransactionReceipt", "0x" + "22" * 32) is None


def test_logs_are_found_by_range_address_topics_and_block(devchain: Devchain) -> None:
    chain = devchain.chain()
    every = [msgspec.to_builtins(log) for made in chain.blocks(10, 60) for log in made.logs]
    span = {"fromBlock": "0xa", "toBlock": "0x3c"}
    assert result(devchain, "eth_getLogs", span) == every
    token = every[0]["address"]
    assert result(devchain, "eth_getLogs", span | {"address": token.upper().replace("0X", "0x")}) == [
        log for log in every if log["address"] == token
    ]
    assert result(devchain, "eth_getLogs", span | {"topics": [[TRANSFER, APPROVAL]]}) == every
    assert result(devchain, "eth_getLogs", span | {"topics": [APPROVAL]}) == [
        log for log in every if log["topics"][0] == APPROVAL
    ]
    someone = every[0]["topics"][1]
    assert result(devchain, "eth_getLogs", span | {"topics": [None, someone]}) == [
        log for log in every if log["topics"][1] == someone
    ]
    assert result(devchain, "eth_getLogs", span | {"topics": [[], [], [], []]}) == [
        log for log in every if len(log["topics"]) == 4
    ]
    made = next(made for made in chain.blocks(1, 240) if made.logs)
    assert result(devchain, "eth_getLogs", {"blockHash": made.hash}) == msgspec.to_builtins(made.logs)


def test_errors_are_those_of_a_real_node(devchain: Devchain, shared_data: Path) -> None:
    """The requests of the real vectors, moved to this chain's height, get the same codes and words."""
    answers = {
        name: response["error"]
        for name, _, response in exchanges(shared_data / "execution-apis/eth_getLogs")
        if "error" in response
    }
    queries = {
        "filter-error-future-block-range": {"fromBlock": "0x32", "toBlock": "0xffff"},
        "filter-error-reversed-block-range": {"fromBlock": "0x32", "toBlock": "0x2f"},
        "filter-error-invalid-blockHash-and-range": {"blockHash": "0x" + "11" * 32, "fromBlock": "0x3"},
    }
    assert set(queries) == set(answers)
    for name, query in queries.items():
        assert call(devchain, "eth_getLogs", query)["error"] == answers[name]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"id": 1}', -32600),
        (b'{"id": 1, "method": "eth_mine"}', -32601),
        (b'{"id": 1, "method": "eth_getBlockByNumber", "params": []}', -32602),
        (b'{"id": 1, "method": "eth_getBlockByNumber", "params": ["12", false]}', -32602),
        (b'{"id": 1, "method": "eth_getBlockByNumber", "params": ["0xzz", false]}', -32602),
        (b'{"id": 1, "method": "eth_getBlockByHash", "params": ["0x12", false]}', -32602),
        (b'{"id": 1, "method": "eth_getLogs", "params": ["x"]}', -32602),
        (b'{"id": 1, "method": "eth_getLogs", "params": [{"topics": [5]}]}', -32602),
    ],
)
def test_a_bad_request_is_refused_with_a_nodes_code(devchain: Devchain, body: bytes, code: int) -> None:
    assert post(devchain.url, body)["error"]["code"] == code


def test_small_calls_are_answered(devchain: Devchain) -> None:
    assert result(devchain, "eth_chainId") == hex(1337)
    assert result(devchain, "net_version") == "1337"
    assert result(devchain, "eth_blockNumber") == "0xf0"
    assert result(devchain, "web3_clientVersion").startswith("trace-devchain")
    assert result(devchain, "web3_sha3", "0x68656c6c6f") == "0x" + keccak(b"hello").hex()


def test_a_batch_is_answered_call_by_call(devchain: Devchain) -> None:
    calls = [{"id": "x", "method": "eth_chainId"}, {"id": 7, "method": "nope"}, {"id": None, "method": "net_version"}]
    answers = post(devchain.node("any"), calls)
    assert [answer["id"] for answer in answers] == ["x", 7, None]
    assert answers[1]["error"]["code"] == -32601


def test_one_node_can_lie_while_another_is_honest(devchain: Devchain) -> None:
    devchain.fault("lie_hash", node="a", times=1)
    request = {"id": 1, "method": "eth_getBlockByNumber", "params": ["0x9", False]}
    true = devchain.chain().block(9).hash
    assert post(devchain.node("b"), request)["result"]["hash"] == true
    assert post(devchain.node("a"), request)["result"]["hash"] != true
    assert post(devchain.node("a"), request)["result"]["hash"] == true  # it was for one time


@pytest.mark.parametrize(
    "order",
    [
        {"do": "dance"},
        {"do": "mine", "blocks": "3"},
        {"do": "fault", "kind": "nap"},
        {"do": "reorg"},
        {"do": "set_head"},
    ],
)
def test_an_order_that_makes_no_sense_is_refused(devchain: Devchain, order: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        devchain.order(order.pop("do"), **order)


def test_orders_from_a_web_page_are_refused(devchain: Devchain) -> None:
    """A browser sends text/plain to any origin without a preflight; it does not send JSON."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(f"{devchain.url}/control", {"do": "mine"}, "text/plain")
    refused.value.close()
    assert refused.value.code == 400


def test_a_chain_is_the_same_after_a_restart_even_by_force(tmp_path: Path) -> None:
    state = tmp_path / "chain.jsonl"
    with running(blocks=30, state=state) as first:
        first.mine(5)
        first.reorg(4)
        first.switch(0)
        first.reorg(2, blocks=7)
        first.finality(3)
        described = first.describe()
        first.process.kill()
    with state.open("a") as journal:
        journal.write('{"do": "mi')  # cut short by the crash
    with running(blocks=999, state=state) as second:
        assert second.describe() == described
        second.mine()
    with running(state=state) as third:
        assert third.describe()["head"] == described["head"] + 1


def test_a_journal_of_another_chain_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "chain.jsonl"
    with running(blocks=3, seed=1, state=state):
        pass
    output = start("--state", str(state), "--seed", "2", "--json", "--port", "0")
    assert output.returncode == 1
    assert "seed 1" in json.loads(output.stdout)["error"]["message"]
    state.write_text(state.read_text() + "garbage\n")
    output = start("--state", str(state), "--seed", "1", "--port", "0")
    assert output.returncode == 1
    assert "line 2" in output.stderr
    assert "Traceback" not in output.stderr


def start(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tracelake", "devchain", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=SECONDS)


def test_blocks_come_by_themselves_when_there_is_a_block_time() -> None:
    with running(blocks=3, block_time=0.02) as ticking:
        before = ticking.describe()["head"]
        while ticking.describe()["head"] < before + 3:
            pass


def test_ctrl_c_ends_it_cleanly() -> None:
    argv = [sys.executable, "-m", "tracelake", "devchain", "--port", "0", "--blocks", "2"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "Chain 1337" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert "stopped" in out


def test_a_taken_port_is_said(devchain: Devchain) -> None:
    output = start("--port", devchain.url.rsplit(":", 1)[1], "--blocks", "1")
    assert output.returncode == 1
    assert "cannot be taken" in output.stderr
