"""The fields of nodes' responses that we read. Values stay hex text until they are converted.

Unknown fields are skipped by the decoder and cost next to nothing. None of these can be part of a reference cycle, so
the garbage collector need not look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class AccessListEntry(msgspec.Struct, rename="camel", gc=False):
    address: str
    storage_keys: list[str]


class Authorization(msgspec.Struct, rename="camel", gc=False):
    chain_id: str
    address: str
    nonce: str
    y_parity: str
    r: str
    s: str


class Transaction(msgspec.Struct, rename="camel", gc=False, kw_only=True, omit_defaults=True):
    hash: str
    nonce: str
    block_hash: str | None
    block_number: str | None
    transaction_index: str | None
    from_: str = msgspec.field(name="from")
    to: str | None
    value: str
    gas: str
    input: str
    r: str
    s: str
    v: str | UnsetType = UNSET
    y_parity: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    gas_price: str | UnsetType = UNSET
    chain_id: str | UnsetType | None = UNSET
    access_list: list[AccessListEntry] | UnsetType | None = UNSET
    max_fee_per_gas: str | UnsetType | None = UNSET
    max_priority_fee_per_gas: str | UnsetType | None = UNSET
    max_fee_per_blob_gas: str | UnsetType | None = UNSET
    blob_versioned_hashes: list[str] | UnsetType | None = UNSET
    authorization_list: list[Authorization] | UnsetType | None = UNSET


class Withdrawal(msgspec.Struct, rename="camel", gc=False):
    index: str
    validator_index: str
    address: str
    amount: str


class Header(msgspec.Struct, rename="camel", gc=False, kw_only=True, omit_defaults=True):
    """A block without its transactions; those that a fork added are there from that fork on."""

    hash: str | None
    number: str | None
    parent_hash: str
    sha3_uncles: str
    miner: str
    state_root: str
    transactions_root: str
    receipts_root: str
    logs_bloom: str
    difficulty: str
    gas_limit: str
    gas_used: str
    timestamp: str
    extra_data: str
    mix_hash: str
    nonce: str
    base_fee_per_gas: str | UnsetType | None = UNSET
    withdrawals_root: str | UnsetType | None = UNSET
    blob_gas_used: str | UnsetType | None = UNSET
    excess_blob_gas: str | UnsetType | None = UNSET
    parent_beacon_block_root: str | UnsetType | None = UNSET
    requests_hash: str | UnsetType | None = UNSET
    withdrawals: list[Withdrawal] | UnsetType | None = UNSET


class BlockOfHashes(Header):
    transactions: list[str]


class Block(Header):
    transactions: list[Transaction]


class Log(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    address: str
    topics: list[str]
    data: str
    block_number: str
    block_hash: str
    transaction_hash: str
    transaction_index: str
    log_index: str
    removed: bool = False


class TxReceipt(msgspec.Struct, rename="camel", gc=False, kw_only=True, omit_defaults=True):
    transaction_hash: str
    transaction_index: str
    block_hash: str
    block_number: str
    from_: str = msgspec.field(name="from")
    gas_used: str
    cumulative_gas_used: str
    logs: list[Log]
    logs_bloom: str
    type: str | UnsetType = UNSET
    status: str | UnsetType | None = UNSET
    root: str | UnsetType | None = UNSET


class RpcError(msgspec.Struct, gc=False):
    code: int
    message: str = ""
    data: Any = None


class Answer(msgspec.Struct, gc=False):
    """One answer of a batch. `result` stays undecoded until it is known what was asked."""

    id: int | str | None = None
    result: msgspec.Raw | UnsetType = UNSET
    error: RpcError | None = None


class BlockAnswer(msgspec.Struct, gc=False):
    """One answer of a batch that asks for whole blocks and their receipts alone: read in one go with the rest of it."""

    id: int | str | None = None
    result: Block | list[TxReceipt] | UnsetType | None = UNSET
    error: RpcError | None = None


RawResponse = bytes | msgspec.Raw
read_answers: Callable[[RawResponse], list[Answer] | Answer] = msgspec.json.Decoder(list[Answer] | Answer).decode
read_block_answers: Callable[[RawResponse], list[BlockAnswer] | BlockAnswer] = msgspec.json.Decoder(
    list[BlockAnswer] | BlockAnswer
).decode
read_block_of_hashes: Callable[[RawResponse], BlockOfHashes | None] = msgspec.json.Decoder(BlockOfHashes | None).decode
read_receipts: Callable[[RawResponse], list[TxReceipt] | None] = msgspec.json.Decoder(list[TxReceipt] | None).decode
read_receipt: Callable[[RawResponse], TxReceipt | None] = msgspec.json.Decoder(TxReceipt | None).decode
read_logs: Callable[[RawResponse], list[Log]] = msgspec.json.Decoder(list[Log]).decode
read_text: Callable[[RawResponse], str] = msgspec.json.Decoder(str).decode
