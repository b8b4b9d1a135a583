"""The columns of `blocks`, `transactions` and `logs`: cryo's names and meanings, so that its users can switch.

Spark has no unsigned numbers, so what cryo writes as u32 and u64 is int64 here; hashes, addresses and data are binary;
a u256 is 32 bytes big-endian (`_binary`), a decimal text (`_string`) and, where sums may be rough, a double (`_f64`).
After cryo's columns, in cryo's order, come our own: `block_hash` (a row names its fork) and `timestamp` (seconds, so
that no one must join `blocks` to place a row in time).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import pyarrow as pa


def _schema(**columns: pa.DataType | tuple[pa.DataType, bool]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind[0], nullable=True) if isinstance(kind, tuple) else pa.field(name, kind, nullable=False)
            for name, kind in columns.items()
        ]
    )


_INT, _BYTES, _TEXT, _DOUBLE, _BOOL = pa.int64(), pa.binary(), pa.string(), pa.float64(), pa.bool_()
_MAYBE_INT, _MAYBE_BYTES, _MAYBE_BOOL = (_INT, True), (_BYTES, True), (_BOOL, True)

BLOCKS: Final = _schema(
    block_hash=_BYTES,
    author=_BYTES,
    block_number=_INT,
    gas_used=_INT,
    extra_data=_BYTES,
    timestamp=_INT,
    base_fee_per_gas=_MAYBE_INT,
    chain_id=_INT,
    parent_hash=_BYTES,
    state_root=_BYTES,
    transactions_root=_BYTES,
    receipts_root=_BYTES,
    withdrawals_root=_MAYBE_BYTES,
    gas_limit=_INT,
    blob_gas_used=_MAYBE_INT,
    excess_blob_gas=_MAYBE_INT,
)

TRANSACTIONS: Final = _schema(
    block_number=_INT,
    transaction_index=_INT,
    transaction_hash=_BYTES,
    nonce=_INT,
    from_address=_BYTES,
    to_address=_MAYBE_BYTES,
    value_binary=_BYTES,
    value_string=_TEXT,
    value_f64=_DOUBLE,
    input=_BYTES,
    gas_limit=_INT,
    gas_used=_INT,
    gas_price=_MAYBE_INT,
    transaction_type=_INT,
    max_priority_fee_per_gas=_MAYBE_INT,
    max_fee_per_gas=_MAYBE_INT,
    success=_MAYBE_BOOL,
    n_input_bytes=_INT,
    n_input_zero_bytes=_INT,
    n_input_nonzero_bytes=_INT,
    chain_id=_INT,
    block_hash=_BYTES,
    timestamp=_INT,
)

LOGS: Final = _schema(
    block_number=_INT,
    transaction_index=_INT,
    log_index=_INT,
    transaction_hash=_BYTES,
    address=_BYTES,
    topic0=_MAYBE_BYTES,
    topic1=_MAYBE_BYTES,
    topic2=_MAYBE_BYTES,
    topic3=_MAYBE_BYTES,
    data=_BYTES,
    n_data_bytes=_INT,
    chain_id=_INT,
    block_hash=_BYTES,
    timestamp=_INT,
)

SCHEMAS: Final = MappingProxyType({"blocks": BLOCKS, "transactions": TRANSACTIONS, "logs": LOGS})
"""By table name."""
UNIQUE_KEYS: Final = MappingProxyType(
    {
        "blocks": ("block_number",),
        "transactions": ("block_number", "transaction_index"),
        "logs": ("block_number", "log_index"),
    }
)
"""What no two rows of one canonical chain share."""
