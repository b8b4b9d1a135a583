"""Each check alone finds what it is there for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracelake.chain.proofs.verify import (
    OtherFork,
    Untrue,
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
from tracelake_devchain.build_block import Made
from tracelake_devchain.chain import Chain


@pytest.fixture
def made() -> Made:
    """A block with everything in it; a fresh one for each test, which spoils it."""
    chain = Chain(seed=11, blocks=80)
    full = (made for made in chain.blocks(1, 80) if len(made.receipts) > 4 and made.block.withdrawals)
    return next(made for made in full if sum(bool(receipt.logs) for receipt in made.receipts) > 1)


def other(text: str | None) -> str:
    assert text is not None
    return text[:-1] + ("1" if text[-1] != "1" else "2")


def refused(check: Callable[[], None], words: str, kind: type[Untrue] = Untrue) -> None:
    with pytest.raises(kind, match=words):
        check()


def test_a_hash_that_is_not_the_headers_is_found(made: Made) -> None:
    made.block.hash = other(made.block.hash)
    refused(lambda: check_header(made.block), "hash it claims")


def test_another_block_than_asked_for_is_found(made: Made) -> None:
    check_header(made.block, made.number)
    refused(lambda: check_header(made.block, made.number + 1), "was answered for")


def test_a_pending_block_is_found(made: Made) -> None:
    made.block.hash = None
    refused(lambda: check_header(made.block), "pending")


def test_a_parent_that_is_another_is_found(made: Made) -> None:
    child = Chain(seed=11, blocks=81).block(made.number + 1)
    check_link(made.block, child.block)
    child.block.parent_hash = other(child.block.parent_hash)
    refused(lambda: check_link(made.block, child.block), "does not follow", OtherFork)


def test_a_transaction_of_another_block_or_place_is_found(made: Made) -> None:
    tx = made.block.transactions[1]
    tx.transaction_index = "0x7"
    refused(lambda: check_transactions(made.block), "transaction 1 is of another place")
    tx.transaction_index, tx.block_hash = "0x1", other(tx.block_hash)
    refused(lambda: check_transactions(made.block), "transaction 1 is of another place")


def test_no_transactions_where_there_are_some_are_found(made: Made) -> None:
    made.block.transactions = []
    refused(lambda: check_transactions(made.block), "header says otherwise")


def test_a_transactions_hash_that_is_not_its_own_is_found(made: Made) -> None:
    made.block.transactions[0].hash = other(made.block.transactions[0].hash)
    refused(lambda: check_transactions_root(made.block), "transaction 0 does not have the hash")


def test_transactions_in_another_order_or_number_are_found_by_their_root(made: Made) -> None:
    last = made.block.transactions.pop()
    refused(lambda: check_transactions_root(made.block), "root")
    made.block.transactions.insert(0, last)
    refused(lambda: check_transactions_root(made.block), "root")


def test_a_gas_price_that_the_fees_do_not_make_is_found(made: Made) -> None:
    tx = next(tx for tx in made.block.transactions if tx.max_fee_per_gas)
    tx.gas_price = other(str(tx.gas_price))
    refused(lambda: check_transactions_root(made.block), "gas price")


def test_receipts_that_do_not_belong_are_found(made: Made) -> None:
    refused(lambda: check_receipts(made.block, made.receipts[:-1]), "4 receipts|receipts for")
    turned = [made.receipts[1], made.receipts[0], *made.receipts[2:]]
    refused(lambda: check_receipts(made.block, turned), "another place")
    first = made.receipts[0]
    first.transaction_hash = other(first.transaction_hash)
    refused(lambda: check_receipts(made.block, made.receipts), "another transaction")


def test_receipts_of_another_fork_are_found(made: Made) -> None:
    made.receipts[2].block_hash = other(made.receipts[2].block_hash)
    refused(lambda: check_receipts(made.block, made.receipts), "another block", OtherFork)


def test_receipts_that_do_not_add_up_are_found(made: Made) -> None:
    made.receipts[-1].cumulative_gas_used = other(made.receipts[-1].cumulative_gas_used)
    refused(lambda: check_receipts(made.block, made.receipts), "gas used")


def test_a_sender_that_differs_in_receipt_and_transaction_is_found(made: Made) -> None:
    made.receipts[0].from_ = other(made.receipts[0].from_)
    refused(lambda: check_receipts(made.block, made.receipts), "senders")


@pytest.mark.parametrize("field", ["status", "cumulative_gas_used", "logs_bloom"])
def test_a_receipt_that_is_not_the_chains_is_found_by_its_root(made: Made, field: str) -> None:
    setattr(made.receipts[0], field, other(getattr(made.receipts[0], field)))
    refused(lambda: check_receipts_root(made.block, made.receipts), "root")


def test_gas_and_places_that_no_root_holds_are_found_beside_it(made: Made) -> None:
    logged = next(receipt for receipt in made.receipts if receipt.logs)
    logged.logs[0].transaction_hash = other(logged.logs[0].transaction_hash)
    refused(lambda: check_receipts_root(made.block, made.receipts), "another transaction")
    logged.logs[0].transaction_hash = logged.transaction_hash
    made.receipts[1].gas_used = other(made.receipts[1].gas_used)
    refused(lambda: check_receipts_root(made.block, made.receipts), "another gas")


def test_logs_with_a_gap_of_another_fork_or_short_of_some_are_found(made: Made) -> None:
    refused(lambda: check_logs(made.block, made.logs[1:]), "missing")
    refused(lambda: check_bloom(made.block, []), "bloom")
    made.logs[0].block_hash = other(made.hash)
    refused(lambda: check_logs(made.block, made.logs), "another block", OtherFork)


def test_a_withdrawal_that_is_another_is_found(made: Made) -> None:
    assert made.block.withdrawals
    made.block.withdrawals[0].amount = other(made.block.withdrawals[0].amount)
    refused(lambda: check_withdrawals_root(made.block), "withdrawals")
