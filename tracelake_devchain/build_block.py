"""A block made of what happens in it: hashes, roots, bloom and the JSON that a node would answer."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import UNSET, UnsetType

from tracelake.chain.hex import as_data
from tracelake.chain.keccak import keccak
from tracelake.chain.nodes import responses
from tracelake.chain.proofs.bloom import SIZE as BLOOM_SIZE
from tracelake.chain.proofs.bloom import bloom_of
from tracelake.chain.proofs.encode import encode_receipt, encode_transaction, encode_withdrawal, header_hash
from tracelake.chain.proofs.rlp import encode_list
from tracelake.chain.proofs.trie import ordered_root
from tracelake_devchain.block_content import Action, EmittedLog, actions, base_fee, withdrawals
from tracelake_devchain.seeded_random import Draw

GENESIS_TIME, SPACING = 1_700_000_000, 12
"""Seconds: a block's time is its place in the chain, never the clock's, so that it is the same in every run."""
GAS_LIMIT = 30_000_000
BLOB_GAS = 131_072
_NO_UNCLES = as_data(keccak(encode_list([])))
_NO_REQUESTS = as_data(sha256(b"").digest())
_encode = msgspec.json.Encoder().encode


class Receipt(responses.TxReceipt, kw_only=True):
    """With what nodes say besides."""

    to: str | None
    contract_address: str | None
    effective_gas_price: str
    blob_gas_used: str | UnsetType = UNSET


class Block(responses.Block, kw_only=True):
    size: str
    uncles: list[str]


class Made:
    """A sealed block and the ways a node spells it; each spelling is made when first asked for."""

    __slots__ = ("_full", "_hashes", "_logs", "_receipts", "block", "branch", "hash", "number", "receipts")

    def __init__(self, block: Block, receipts: list[Receipt], number: int, branch: int) -> None:
        self.block, self.receipts, self.number, self.branch = block, receipts, number, branch
        self.hash = block.hash or ""
        self._full = self._hashes = self._receipts = self._logs = b""

    @property
    def full_json(self) -> bytes:
        self._full = self._full or _encode(self.block)
        return self._full

    @property
    def hashes_json(self) -> bytes:
        if not self._hashes:
            as_dict = msgspec.to_builtins(self.block)
            self._hashes = _encode(as_dict | {"transactions": [tx.hash for tx in self.block.transactions]})
        return self._hashes

    @property
    def receipts_json(self) -> bytes:
        self._receipts = self._receipts or _encode(self.receipts)
        return self._receipts

    @property
    def logs_json(self) -> bytes:
        """Without brackets, so that blocks can be joined; empty if there are none."""
        if not self._logs:
            self._logs = _encode(self.logs)
        return self._logs[1:-1]

    @property
    def logs(self) -> list[responses.Log]:
        return [log for receipt in self.receipts for log in receipt.logs]


def seal(seed: int, chain_id: int, number: int, branch: int, parent_hash: str) -> Made:
    """Block `number` of `branch` on top of its parent."""
    happened = actions(seed, chain_id, number, branch)
    encoded = [encode_transaction(action.tx) for action in happened]
    for place, (action, body) in enumerate(zip(happened, encoded, strict=True)):
        action.tx.hash, action.tx.transaction_index = as_data(keccak(body)), hex(place)
        action.tx.block_number = hex(number)
    receipts = _receipts(happened, number)
    block = _block(seed, number, branch, happened, receipts)
    block.parent_hash = parent_hash
    block.transactions_root = as_data(ordered_root(encoded))
    block.receipts_root = as_data(ordered_root(list(map(encode_receipt, receipts))))
    _name(block, receipts)
    return Made(block, receipts, number, branch)


def _name(block: Block, receipts: list[Receipt]) -> None:
    """The hash, last of all, and everywhere it is repeated."""
    block.hash = as_data(header_hash(block))
    for tx in block.transactions:
        tx.block_hash = block.hash
    for receipt in receipts:
        receipt.block_hash = block.hash
        for log in receipt.logs:
            log.block_hash = block.hash


def _receipts(happened: list[Action], number: int) -> list[Receipt]:
    used, first_log, receipts = 0, 0, []
    for action in happened:
        used += action.gas_used
        logs = [_log(event, action.tx, number, first_log + place) for place, event in enumerate(action.events)]
        first_log += len(logs)
        receipts.append(_receipt(action, logs, used, number))
    return receipts


def _receipt(action: Action, logs: list[responses.Log], used: int, number: int) -> Receipt:
    tx = action.tx
    blobs = tx.blob_versioned_hashes or []
    return Receipt(
        transaction_hash=tx.hash,
        transaction_index=tx.transaction_index or "",
        block_hash="",
        block_number=hex(number),
        from_=tx.from_,
        to=tx.to,
        gas_used=hex(action.gas_used),
        cumulative_gas_used=hex(used),
        logs=logs,
        type=tx.type,
        status="0x1" if action.succeeded else "0x0",
        contract_address=action.created,
        effective_gas_price=tx.gas_price or "0x0",
        logs_bloom=_bloom(logs),
        blob_gas_used=hex(BLOB_GAS * len(blobs)) if blobs else UNSET,
    )


def _log(event: EmittedLog, tx: responses.Transaction, number: int, index: int) -> responses.Log:
    return responses.Log(
        address=event.address,
        topics=event.topics,
        data=event.data,
        block_number=hex(number),
        block_hash="",
        transaction_hash=tx.hash,
        transaction_index=tx.transaction_index or "",
        log_index=hex(index),
    )


def _bloom(logs: list[responses.Log]) -> str:
    return as_data(bloom_of(logs).to_bytes(BLOOM_SIZE, "big"))


def _block(seed: int, number: int, branch: int, happened: list[Action], receipts: list[Receipt]) -> Block:
    draw = Draw(seed, "header", number, branch, size=160)
    paid_out = withdrawals(seed, number)
    blobs = sum(len(action.tx.blob_versioned_hashes or []) for action in happened)
    return Block(
        hash="",
        number=hex(number),
        parent_hash="",
        sha3_uncles=_NO_UNCLES,
        miner=as_data(draw.take(20)),
        state_root=as_data(draw.take(32)),
        transactions_root="",
        receipts_root="",
        logs_bloom=_bloom([log for receipt in receipts for log in receipt.logs]),
        difficulty="0x0",
        gas_limit=hex(GAS_LIMIT),
        gas_used=receipts[-1].cumulative_gas_used if receipts else "0x0",
        timestamp=hex(GENESIS_TIME + SPACING * number),
        extra_data=as_data(f"trace devchain {branch}".encode()),
        mix_hash=as_data(draw.take(32)),
        nonce="0x" + "00" * 8,
        base_fee_per_gas=hex(base_fee(seed, number)),
        withdrawals_root=as_data(ordered_root([encode_withdrawal(withdrawal) for withdrawal in paid_out])),
        blob_gas_used=hex(BLOB_GAS * blobs),
        excess_blob_gas="0x0",
        parent_beacon_block_root=as_data(draw.take(32)),
        requests_hash=_NO_REQUESTS,
        withdrawals=paid_out,
        transactions=[action.tx for action in happened],
        size=hex(600 + 180 * len(happened)),
        uncles=[],
    )
