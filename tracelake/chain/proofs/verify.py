"""Checks a block against its hash. A header proves itself; it proves everything else.

The checks of the header, of places and of logs cost little and run on every block. Those of roots hash every
transaction and receipt up to the header: nothing signed can be wrong after them. docs/concepts/chain_verification.md
lists what is left unproved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from tracelake.chain.hex import as_data, as_quantity, number
from tracelake.chain.keccak import keccak_256
from tracelake.chain.nodes.responses import Block, BlockOfHashes, Header, Log, Transaction, TxReceipt
from tracelake.chain.proofs.bloom import bloom_of
from tracelake.chain.proofs.encode import encode_receipt, encode_transaction, encode_withdrawal, header_hash
from tracelake.chain.proofs.trie import EMPTY_ROOT, ordered_root

_EMPTY = as_data(EMPTY_ROOT)
_FEE_MARKET = 2
"""From this kind on, a transaction has a most that it pays for gas, and a tip."""


class Untrue(ValueError):
    """The response cannot be true; the caller adds the endpoint."""


class OtherFork(Untrue):
    """The responses contradict each other: the chain moved between them, or one is wrong."""


def check_header(header: Header, wanted: int | None = None) -> None:
    """The hash is the header's own, and it is the block that was asked for."""
    if header.hash is None or header.number is None:
        raise Untrue("a pending block was answered for a mined one")
    if wanted is not None and number(header.number) != wanted:
        raise Untrue(f"block {number(header.number)} was answered for block {wanted}")
    if as_data(header_hash(header)) != header.hash:
        raise Untrue(f"block {number(header.number)} does not have the hash it claims")


def check_link(parent: Header, child: Header) -> None:
    if child.parent_hash != parent.hash:
        raise OtherFork(f"block {number(child.number or '0x0')} does not follow the one before it")


def check_transactions(block: Block) -> None:
    """They belong to this block, in order; there are none only if the header says so."""
    _check_presence(block, "transactions", block.transactions_root, len(block.transactions))
    for position, tx in enumerate(block.transactions):
        if tx.block_hash != block.hash or tx.transaction_index != hex(position):
            raise Untrue(f"{_name(block)}: transaction {position} is of another place")
        if not tx.gas_price and block.base_fee_per_gas:
            _add_price(tx, number(block.base_fee_per_gas))


def check_receipts(block: Block | BlockOfHashes, receipts: Sequence[TxReceipt]) -> None:
    """One for each transaction, in order, and together they used the gas that the header names."""
    if len(receipts) != len(block.transactions):
        raise Untrue(f"{_name(block)}: {len(receipts)} receipts for {len(block.transactions)} transactions")
    whole = isinstance(block, Block)
    for position, receipt in enumerate(receipts):
        tx: Any = block.transactions[position]
        if receipt.block_hash != block.hash:
            raise OtherFork(f"{_name(block)}: its receipts are of another block")
        if receipt.transaction_index != hex(position):
            raise Untrue(f"{_name(block)}: receipt {position} is of another place")
        if receipt.transaction_hash != (tx.hash if whole else tx):
            raise Untrue(f"{_name(block)}: receipt {position} is of another transaction")
        if whole and receipt.from_ != tx.from_:
            raise Untrue(f"{_name(block)}: receipt {position} and its transaction have different senders")
    if number(receipts[-1].cumulative_gas_used if receipts else "0x0") != number(block.gas_used):
        raise Untrue(f"{_name(block)}: the receipts do not add up to the gas used")


def check_logs(block: Header, logs: Sequence[Log]) -> None:
    """They are of this block, numbered without a gap."""
    for position, log in enumerate(logs):
        if log.block_hash != block.hash:
            raise OtherFork(f"{_name(block)}: its logs are of another block")
        if log.log_index != hex(position):
            raise Untrue(f"{_name(block)}: log {position} is missing or of another place")


def check_bloom(block: Header, logs: Sequence[Log]) -> None:
    """Their bloom filter is the header's. The receipts' root proves more; this is for those who do not ask for it."""
    if bloom_of(logs) != number(block.logs_bloom):
        raise Untrue(f"{_name(block)}: the logs are not those that its bloom filter was made of")


def check_receipts_root(block: Header, receipts: Sequence[TxReceipt]) -> None:
    if as_data(ordered_root([encode_receipt(receipt) for receipt in receipts])) != block.receipts_root:
        raise Untrue(f"{_name(block)}: the receipts do not have the root that the header names")
    used = 0
    for position, receipt in enumerate(receipts):
        before, used = used, int(receipt.cumulative_gas_used, 16)
        if int(receipt.gas_used, 16) != used - before:
            raise Untrue(f"{_name(block)}: receipt {position} has another gas than its place in the sum")
        for log in receipt.logs:
            if log.transaction_hash != receipt.transaction_hash or log.transaction_index != receipt.transaction_index:
                raise Untrue(f"{_name(block)}: a log of receipt {position} names another transaction")


def check_transactions_root(block: Block) -> None:
    encoded = [encode_transaction(tx) for tx in block.transactions]
    base_fee = number(block.base_fee_per_gas) if block.base_fee_per_gas else None
    for position, tx in enumerate(block.transactions):
        if "0x" + keccak_256(encoded[position]).hexdigest() != tx.hash:
            raise Untrue(f"{_name(block)}: transaction {position} does not have the hash it claims")
        if base_fee is not None:
            _check_price(block, tx, base_fee)
    if as_data(ordered_root(encoded)) != block.transactions_root:
        raise Untrue(f"{_name(block)}: the transactions do not have the root that the header names")


def check_withdrawals_root(block: Header) -> None:
    if not block.withdrawals_root:
        return
    withdrawals = block.withdrawals or []
    if as_data(ordered_root([encode_withdrawal(withdrawal) for withdrawal in withdrawals])) != block.withdrawals_root:
        raise Untrue(f"{_name(block)}: the withdrawals do not have the root that the header names")


def _check_price(block: Header, tx: Transaction, base_fee: int) -> None:
    """What was paid for gas follows from the signed fields and the header; it is not itself signed.

    Of older kinds it is signed, and fees that they do not have are nothing.
    """
    if not tx.type or number(tx.type) < _FEE_MARKET:
        tx.max_fee_per_gas = tx.max_priority_fee_per_gas = UNSET
    elif tx.gas_price and number(tx.gas_price) != _price(tx, base_fee):
        raise Untrue(f"{_name(block)}: a transaction's gas price is not what its fees make")


def _add_price(tx: Transaction, base_fee: int) -> None:
    """Some nodes leave it out."""
    if tx.max_fee_per_gas and tx.max_priority_fee_per_gas:
        tx.gas_price = as_quantity(_price(tx, base_fee))


def _price(tx: Transaction, base_fee: int) -> int:
    return min(int(tx.max_fee_per_gas or "", 16), base_fee + int(tx.max_priority_fee_per_gas or "", 16))


def _check_presence(block: Header, what: str, root: str, count: int) -> None:
    if (root == _EMPTY) != (count == 0):
        raise Untrue(f"{_name(block)}: {count} {what}, and its header says otherwise")


def _name(block: Header) -> str:
    return f"block {number(block.number or '0x0')}"
