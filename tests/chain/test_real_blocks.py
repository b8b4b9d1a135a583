"""Real blocks of every fork are hashed and proved as they were on their chain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.chain.encoding import exchanges
from tests.support.chain.real_blocks import blocks
from tracelake.chain.keccak import keccak
from tracelake.chain.nodes.errors import read_error
from tracelake.chain.nodes.responses import Block, Log, RpcError, Transaction, TxReceipt
from tracelake.chain.nodes.rpc_pool import Endpoint
from tracelake.chain.proofs.encode import encode_transaction
from tracelake.chain.proofs.verify import (
    Untrue,
    check_bloom,
    check_header,
    check_logs,
    check_receipts,
    check_receipts_root,
    check_transactions,
    check_transactions_root,
    check_withdrawals_root,
)
from tracelake.errors import ProviderError, ProviderLagged, ProviderRefused

TYPED = json.loads((Path(__file__).parent / "vectors" / "typed_transactions.json").read_text())


def test_every_real_header_has_the_hash_that_is_made_of_it(shared_data: Path) -> None:
    found = blocks(shared_data)
    assert {"get-genesis", "get-block-london-fork", "get-block-shanghai-fork", "get-block-prague-fork"} <= set(found)
    for block in found.values():
        check_header(block, int(block.number or "", 16))


@pytest.mark.parametrize("field", ["gas_used", "timestamp", "extra_data", "requests_hash", "excess_blob_gas", "nonce"])
def test_a_header_with_any_field_changed_has_not_its_hash(shared_data: Path, field: str) -> None:
    block = blocks(shared_data)["get-block-prague-fork"]
    text = getattr(block, field)
    setattr(block, field, text + "ff" if field == "extra_data" else text[:-1] + ("1" if text[-1] != "1" else "2"))
    with pytest.raises(Untrue, match="hash"):
        check_header(block)


def test_real_transactions_and_withdrawals_have_the_roots_that_headers_name(shared_data: Path) -> None:
    whole = [block for block in blocks(shared_data).values() if isinstance(block, Block)]
    assert any(block.transactions for block in whole)
    for block in whole:
        check_transactions(block)
        check_transactions_root(block)
    withdrawn = [block for block in blocks(shared_data).values() if block.withdrawals]
    assert withdrawn
    for item in withdrawn:
        check_withdrawals_root(item)


def test_real_receipts_have_the_root_and_the_bloom_that_their_header_names(shared_data: Path) -> None:
    block = blocks(shared_data)["get-latest"]
    answers = {name: response for name, _, response in exchanges(shared_data / "execution-apis/eth_getBlockReceipts")}
    receipts = msgspec.convert(answers["get-block-receipts-latest"]["result"], list[TxReceipt])
    logs = [log for receipt in receipts for log in receipt.logs]
    assert logs
    check_receipts(block, receipts)
    check_receipts_root(block, receipts)
    check_logs(block, logs)
    check_bloom(block, logs)
    with pytest.raises(Untrue, match="bloom"):
        check_bloom(block, logs[:-1])
    logs[0].data = logs[0].data[:-1] + "9"
    with pytest.raises(Untrue, match="root"):
        check_receipts_root(block, receipts)


def test_real_logs_are_read(shared_data: Path) -> None:
    found = {name: answer for name, _, answer in exchanges(shared_data / "execution-apis/eth_getLogs")}
    read = {name: msgspec.convert(answer["result"], list[Log]) for name, answer in found.items() if "result" in answer}
    assert read
    assert [name for name, logs in read.items() if not logs] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("filter-error-future-block-range", ProviderLagged),
        ("filter-error-invalid-blockHash-and-range", ProviderRefused),
        ("filter-error-reversed-block-range", ProviderRefused),
    ],
)
def test_a_real_nodes_error_is_read_as_what_it_means(shared_data: Path, name: str, kind: type[ProviderError]) -> None:
    answers = {name: response for name, _, response in exchanges(shared_data / "execution-apis/eth_getLogs")}
    error = read_error(Endpoint("https://node/KEY"), "eth_getLogs", msgspec.convert(answers[name]["error"], RpcError))
    assert type(error) is kind
    assert error.where == "node"


@pytest.mark.parametrize("kind", ["access_list", "dynamic_fee", "blob", "set_code"])
def test_a_typed_transaction_has_the_hash_that_is_made_of_it(kind: str) -> None:
    tx: Any = msgspec.convert(TYPED[kind], Transaction)
    assert "0x" + keccak(encode_transaction(tx)).hex() == tx.hash
    tx.value = "0x7"
    assert "0x" + keccak(encode_transaction(tx)).hex() != tx.hash
