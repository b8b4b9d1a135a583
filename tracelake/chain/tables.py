"""Checked blocks with their receipts or logs -> Arrow record batches, one for each wanted table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as chained
from typing import Any

import numpy as np
import pyarrow as pa

from tracelake.chain.columns import (
    constant,
    fixed,
    fixed_or_null,
    integers,
    integers_or_null,
    positions,
    repeated,
    varying,
    words,
)
from tracelake.chain.nodes.responses import Block, BlockOfHashes, Log, Transaction, TxReceipt
from tracelake.chain.proofs.verify import Untrue
from tracelake.chain.schemas import BLOCKS, LOGS, TRANSACTIONS


@dataclass(slots=True)
class CheckedBlock:
    """One block and what was asked about it; checked already."""

    block: Block | BlockOfHashes
    receipts: Sequence[TxReceipt]
    logs: Sequence[Log]
    by: int = 0
    """The index in the pool of the endpoint that returned it."""


def blocks_batch(known: Sequence[CheckedBlock], chain_id: int) -> pa.RecordBatch:
    of = [item.block for item in known]
    columns = {
        "block_hash": fixed([case.hash or "" for case in of], 32),
        "author": fixed([case.miner for case in of], 20),
        "block_number": integers([case.number or "" for case in of]),
        "gas_used": integers([case.gas_used for case in of]),
        "extra_data": varying([case.extra_data for case in of]),
        "timestamp": integers([case.timestamp for case in of]),
        "base_fee_per_gas": integers_or_null([case.base_fee_per_gas for case in of]),
        "chain_id": constant(chain_id, len(of)),
        "parent_hash": fixed([case.parent_hash for case in of], 32),
        "state_root": fixed([case.state_root for case in of], 32),
        "transactions_root": fixed([case.transactions_root for case in of], 32),
        "receipts_root": fixed([case.receipts_root for case in of], 32),
        "withdrawals_root": fixed_or_null([case.withdrawals_root for case in of], 32),
        "gas_limit": integers([case.gas_limit for case in of]),
        "blob_gas_used": integers_or_null([case.blob_gas_used for case in of]),
        "excess_blob_gas": integers_or_null([case.excess_blob_gas for case in of]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in BLOCKS.names], schema=BLOCKS)


def transactions_batch(known: Sequence[CheckedBlock], chain_id: int) -> pa.RecordBatch:
    txs: list[Transaction] = list(chained.from_iterable(_whole(item) for item in known))
    receipts = list(chained.from_iterable(item.receipts for item in known))
    counts = [len(item.block.transactions) for item in known]
    values = [int(tx.value, 16) for tx in txs]
    data = varying([tx.input for tx in txs])
    sizes, zeros = _bytes_and_zeros(data)
    columns = {
        "transaction_index": positions(counts),
        "transaction_hash": fixed([tx.hash for tx in txs], 32),
        "nonce": integers([tx.nonce for tx in txs]),
        "from_address": fixed([tx.from_ for tx in txs], 20),
        "to_address": fixed_or_null([tx.to for tx in txs], 20),
        "value_binary": words([tx.value for tx in txs]),
        "value_string": pa.array(list(map(str, values)), pa.string()),
        "value_f64": pa.array(list(map(float, values)), pa.float64()),
        "input": data,
        "gas_limit": integers([tx.gas for tx in txs]),
        "gas_used": integers([receipt.gas_used for receipt in receipts]),
        "gas_price": integers_or_null([tx.gas_price for tx in txs]),
        "transaction_type": integers([tx.type or "0x0" for tx in txs]),
        "max_priority_fee_per_gas": integers_or_null([tx.max_priority_fee_per_gas for tx in txs]),
        "max_fee_per_gas": integers_or_null([tx.max_fee_per_gas for tx in txs]),
        "success": pa.array([_success(receipt) for receipt in receipts], pa.bool_()),
        "n_input_bytes": pa.array(sizes),
        "n_input_zero_bytes": pa.array(zeros),
        "n_input_nonzero_bytes": pa.array(sizes - zeros),
    } | _of_block(known, counts, chain_id)
    return pa.RecordBatch.from_arrays([columns[name] for name in TRANSACTIONS.names], schema=TRANSACTIONS)


def logs_batch(known: Sequence[CheckedBlock], chain_id: int) -> pa.RecordBatch:
    logs = list(chained.from_iterable(item.logs for item in known))
    counts = [len(item.logs) for item in known]
    topics = _topics(logs)
    data = varying([log.data for log in logs])
    columns = {
        "transaction_index": integers([log.transaction_index for log in logs]),
        "log_index": positions(counts),
        "transaction_hash": fixed([log.transaction_hash for log in logs], 32),
        "address": fixed([log.address for log in logs], 20),
        **{f"topic{place}": fixed_or_null(topics[place], 32) for place in range(4)},
        "data": data,
        "n_data_bytes": pa.array(_sizes(data)),
    } | _of_block(known, counts, chain_id)
    return pa.RecordBatch.from_arrays([columns[name] for name in LOGS.names], schema=LOGS)


BATCHES = {"blocks": blocks_batch, "transactions": transactions_batch, "logs": logs_batch}


def _of_block(known: Sequence[CheckedBlock], counts: list[int], chain_id: int) -> dict[str, pa.Array]:
    """What every row of a block shares, converted once a block."""
    return {
        "block_number": repeated(integers([item.block.number or "" for item in known]), counts),
        "block_hash": repeated(fixed([item.block.hash or "" for item in known], 32), counts),
        "timestamp": repeated(integers([item.block.timestamp for item in known]), counts),
        "chain_id": constant(chain_id, sum(counts)),
    }


def _whole(known: CheckedBlock) -> list[Transaction]:
    assert isinstance(known.block, Block)  # noqa: S101 - asked for whole whenever this table is wanted
    return known.block.transactions


def _topics(logs: Sequence[Log]) -> list[tuple[str | None, ...]]:
    """The first topics of all logs, then the second ones, and so on: as many as an event can have."""
    padded = zip(*[(*log.topics, None, None, None, None) for log in logs], strict=False)
    return list(padded)[:4] or [()] * 4


def _success(receipt: TxReceipt) -> bool | None:
    """None before Byzantium: those receipts name a root instead, and a status beside it would be proved by nothing."""
    if receipt.root or not receipt.status:
        return None
    if (status := int(receipt.status, 16)) not in (0, 1):
        raise Untrue("a transaction's status is neither 0 nor 1")
    return status == 1


def _sizes(data: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.diff(_offsets(data)).astype(np.int64)


def _bytes_and_zeros(data: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes of each value, and how many of them are zero: what calldata costs."""
    offsets = _offsets(data)
    raw = np.frombuffer(data.buffers()[2], dtype=np.uint8)
    before = np.zeros(len(raw) + 1, dtype=np.int32)
    np.cumsum(raw == 0, dtype=np.int32, out=before[1:])
    return np.diff(offsets).astype(np.int64), np.diff(before[offsets]).astype(np.int64)


def _offsets(data: pa.Array) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.frombuffer(data.buffers()[1], dtype=np.int32)[: len(data) + 1]
