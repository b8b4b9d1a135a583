"""What nodes hash: headers, transactions, receipts and withdrawals in their own encoding, for every fork to Prague."""

from __future__ import annotations

from collections.abc import Callable

from trace_platform.chain.keccak import keccak
from trace_platform.chain.rlp import (
    text_of_address,
    text_of_data,
    text_of_list,
    text_of_quantity,
    text_of_word,
)
from trace_platform.chain.wire import Access, Authorization, Header, Log, Receipt, Transaction, Withdrawal

_WORD, _BLOOM, _NONCE = {66}, 514, 18
"""Lengths as text."""


class UnknownType(ValueError):
    """A transaction of a type that this code cannot encode, so cannot check."""


def header_hash(header: Header) -> bytes:
    return keccak(encode_header(header))


def encode_header(header: Header) -> bytes:
    words = (header.parent_hash, header.sha3_uncles, header.state_root, header.transactions_root, header.receipts_root)
    if (
        {len(header.mix_hash), *map(len, words)} != _WORD
        or len(header.logs_bloom) != _BLOOM
        or len(header.nonce) != _NONCE
    ):
        raise ValueError("a field of a header does not have the length it should")
    parent, uncles, state, transactions, receipts = words
    body = (
        f"a0{parent[2:]}a0{uncles[2:]}{text_of_address(header.miner)}a0{state[2:]}a0{transactions[2:]}a0{receipts[2:]}"
        f"b90100{header.logs_bloom[2:]}{text_of_quantity(header.difficulty)}{text_of_quantity(header.number or '0x0')}"
        f"{text_of_quantity(header.gas_limit)}{text_of_quantity(header.gas_used)}{text_of_quantity(header.timestamp)}"
        f"{text_of_data(header.extra_data)}a0{header.mix_hash[2:]}88{header.nonce[2:]}"
    )
    # Each fork adds at the end, and none leaves a gap: the first absent one ends the list.
    for text, spelled in (
        (header.base_fee_per_gas, text_of_quantity),
        (header.withdrawals_root, text_of_word),
        (header.blob_gas_used, text_of_quantity),
        (header.excess_blob_gas, text_of_quantity),
        (header.parent_beacon_block_root, text_of_word),
        (header.requests_hash, text_of_word),
    ):
        if not text:
            break
        body += spelled(text)
    return bytes.fromhex(text_of_list(body))


def encode_transaction(tx: Transaction) -> bytes:
    """As it stands in the transactions tree; its Keccak is the transaction's hash."""
    kind = int(tx.type, 16) if tx.type else 0
    if kind == 0:
        body = _common(tx, text_of_quantity(_text(tx.gas_price))) + _signature(tx, _text(tx.v))
        return bytes.fromhex(text_of_list(body))
    if kind not in _TYPED:
        raise UnknownType(f"a transaction of type {hex(kind)}")
    body = text_of_quantity(_text(tx.chain_id)) + _TYPED[kind](tx)
    parity = tx.y_parity if isinstance(tx.y_parity, str) else _text(tx.v)
    return bytes.fromhex(f"0{kind}" + text_of_list(body + _signature(tx, parity)))


def _access_list_body(tx: Transaction) -> str:
    return _common(tx, text_of_quantity(_text(tx.gas_price))) + _access_list(tx.access_list or [])


def _fee_market_body(tx: Transaction) -> str:
    fees = text_of_quantity(_text(tx.max_priority_fee_per_gas)) + text_of_quantity(_text(tx.max_fee_per_gas))
    return _common(tx, fees) + _access_list(tx.access_list or [])


def _blob_body(tx: Transaction) -> str:
    hashes = text_of_list("".join(map(text_of_word, tx.blob_versioned_hashes or [])))
    return _fee_market_body(tx) + text_of_quantity(_text(tx.max_fee_per_blob_gas)) + hashes


def _set_code_body(tx: Transaction) -> str:
    return _fee_market_body(tx) + text_of_list("".join(map(_authorization, tx.authorization_list or [])))


_TYPED: dict[int, Callable[[Transaction], str]] = {
    1: _access_list_body,
    2: _fee_market_body,
    3: _blob_body,
    4: _set_code_body,
}


def _common(tx: Transaction, prices: str) -> str:
    to = text_of_address(tx.to) if tx.to else "80"
    numbers = f"{text_of_quantity(tx.nonce)}{prices}{text_of_quantity(tx.gas)}"
    return f"{numbers}{to}{text_of_quantity(tx.value)}{text_of_data(tx.input)}"


def _signature(tx: Transaction, v: str) -> str:
    return text_of_quantity(v) + text_of_quantity(tx.r) + text_of_quantity(tx.s)


def _authorization(one: Authorization) -> str:
    rest = "".join(map(text_of_quantity, (one.nonce, one.y_parity, one.r, one.s)))
    return text_of_list(text_of_quantity(one.chain_id) + text_of_address(one.address) + rest)


def _access_list(entries: list[Access]) -> str:
    if not entries:
        return "c0"
    return text_of_list(
        "".join(
            text_of_list(text_of_address(entry.address) + text_of_list("".join(map(text_of_word, entry.storage_keys))))
            for entry in entries
        )
    )


def _text(field: object) -> str:
    if not isinstance(field, str):
        raise ValueError("a field that this transaction's type has is missing")  # noqa: TRY004 - about the answer
    return field


def encode_receipt(receipt: Receipt) -> bytes:
    """As it stands in the receipts tree. Before Byzantium it names the state's root, since then the outcome.

    Its bloom filter is taken as it was told: the root that this leads to proves it, or not.
    """
    outcome = text_of_word(receipt.root) if receipt.root else text_of_quantity(_text(receipt.status))
    bloom = receipt.logs_bloom
    if len(bloom) != _BLOOM:
        raise ValueError("a bloom filter does not have 256 bytes")
    logs = text_of_list("".join(map(_log, receipt.logs))) if receipt.logs else "c0"
    body = f"{outcome}{text_of_quantity(receipt.cumulative_gas_used)}b90100{bloom[2:]}{logs}"
    kind = int(receipt.type, 16) if receipt.type else 0
    return bytes.fromhex((f"{kind:02x}" if kind else "") + text_of_list(body))


def _log(log: Log) -> str:
    topics = text_of_list("".join(map(text_of_word, log.topics)))
    return text_of_list(f"{text_of_address(log.address)}{topics}{text_of_data(log.data)}")


def encode_withdrawal(one: Withdrawal) -> bytes:
    numbers = text_of_quantity(one.index) + text_of_quantity(one.validator_index)
    return bytes.fromhex(text_of_list(numbers + text_of_address(one.address) + text_of_quantity(one.amount)))
