"""The columns that users of cryo know: names, order and types are written out here, so that no change goes unseen."""

from __future__ import annotations

import pytest

from tracelake.chain.schemas import SCHEMAS

BLOCKS = """
block_hash binary, author binary, block_number int64, gas_used int64, extra_data binary, timestamp int64,
base_fee_per_gas int64?, chain_id int64, parent_hash binary, state_root binary, transactions_root binary,
receipts_root binary, withdrawals_root binary?, gas_limit int64, blob_gas_used int64?, excess_blob_gas int64?
"""
LOGS = """
block_number int64, transaction_index int64, log_index int64, transaction_hash binary, address binary,
topic0 binary?, topic1 binary?, topic2 binary?, topic3 binary?, data binary, n_data_bytes int64, chain_id int64,
block_hash binary, timestamp int64
"""


@pytest.mark.parametrize(("table", "columns"), [("blocks", BLOCKS), ("logs", LOGS)])
def test_columns_have_their_names_order_and_types(table: str, columns: str) -> None:
    """A question mark: it may be null."""
    described = [f"{field.name} {field.type}{'?' if field.nullable else ''}" for field in SCHEMAS[table]]
    assert described == [word.strip() for word in columns.split(",")]
