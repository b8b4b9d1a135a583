"""What the tables of a range must hold, row by row from the chain itself: no JSON, no client, no columns at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tracelake.chain.schemas import SCHEMAS
from tracelake_devchain.build_block import Made
from tracelake_devchain.chain import Chain


def truth_table(chain: Chain, table: str, start: int, end: int) -> pa.Table:
    """Blocks `start` to `end` of the canonical chain, both included."""
    rows = [row | {"chain_id": chain.chain_id} for made in chain.blocks(start, end) for row in _ROWS[table](made)]
    return pa.Table.from_pylist(rows, SCHEMAS[table])


def _block(made: Made) -> Iterator[dict[str, Any]]:
    block = made.block
    yield _common(made) | {
        "author": _bytes(block.miner),
        "gas_used": _int(block.gas_used),
        "extra_data": _bytes(block.extra_data),
        "base_fee_per_gas": _int(block.base_fee_per_gas),
        "parent_hash": _bytes(block.parent_hash),
        "state_root": _bytes(block.state_root),
        "transactions_root": _bytes(block.transactions_root),
        "receipts_root": _bytes(block.receipts_root),
        "withdrawals_root": _bytes(block.withdrawals_root),
        "gas_limit": _int(block.gas_limit),
        "blob_gas_used": _int(block.blob_gas_used),
        "excess_blob_gas": _int(block.excess_blob_gas),
    }


def _transactions(made: Made) -> Iterator[dict[str, Any]]:
    for place, (tx, receipt) in enumerate(zip(made.block.transactions, made.receipts, strict=True)):
        value, data = int(tx.value, 16), bytes.fromhex(tx.input[2:])
        yield _common(made) | {
            "transaction_index": place,
            "transaction_hash": _bytes(tx.hash),
            "nonce": _int(tx.nonce),
            "from_address": _bytes(tx.from_),
            "to_address": _bytes(tx.to),
            "value_binary": value.to_bytes(32, "big"),
            "value_string": str(value),
            "value_f64": float(value),
            "input": data,
            "gas_limit": _int(tx.gas),
            "gas_used": _int(receipt.gas_used),
            "gas_price": _int(tx.gas_price),
            "transaction_type": _int(tx.type),
            "max_priority_fee_per_gas": _int(tx.max_priority_fee_per_gas),
            "max_fee_per_gas": _int(tx.max_fee_per_gas),
            "success": receipt.status == "0x1",
            "n_input_bytes": len(data),
            "n_input_zero_bytes": data.count(0),
            "n_input_nonzero_bytes": len(data) - data.count(0),
        }


def _logs(made: Made) -> Iterator[dict[str, Any]]:
    for place, log in enumerate(made.logs):
        data = _bytes(log.data)
        yield _common(made) | {
            "transaction_index": _int(log.transaction_index),
            "log_index": place,
            "transaction_hash": _bytes(log.transaction_hash),
            "address": _bytes(log.address),
            **{f"topic{at}": _bytes(log.topics[at]) if at < len(log.topics) else None for at in range(4)},
            "data": data,
            "n_data_bytes": len(data or b""),
        }


_ROWS: dict[str, Callable[[Made], Iterator[dict[str, Any]]]] = {
    "blocks": _block,
    "transactions": _transactions,
    "logs": _logs,
}


def _common(made: Made) -> dict[str, Any]:
    return {
        "block_number": made.number,
        "block_hash": _bytes(made.hash),
        "timestamp": int(made.block.timestamp, 16),
    }


def _bytes(text: object) -> bytes | None:
    return bytes.fromhex(text[2:]) if isinstance(text, str) else None


def _int(text: object) -> int | None:
    return int(text, 16) if isinstance(text, str) else None
