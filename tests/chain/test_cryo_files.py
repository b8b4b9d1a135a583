"""Our transactions and cryo's own files are one table when read by column names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tracelake.chain.schemas import TRANSACTIONS
from tracelake_devchain.chain import Chain
from tracelake_devchain.expected_rows import truth_table


def ours(folder: Path) -> tuple[Path, pa.Table]:
    table = truth_table(Chain(blocks=30), "transactions", 0, 30)
    pq.write_table(table, folder / "ours.parquet")
    return folder / "ours.parquet", table


def test_cryos_columns_are_ours_in_its_order_and_only_ours_come_after(shared_data: Path) -> None:
    files = sorted((shared_data / "cryo").glob("*.parquet"))
    assert files
    for path in files:
        names = pq.read_schema(path).names
        assert TRANSACTIONS.names[: len(names)] == names
        assert TRANSACTIONS.names[len(names) :] == ["block_hash", "timestamp"]


def test_cryos_files_and_ours_are_read_as_one(shared_data: Path, tmp_path: Path) -> None:
    mine, table = ours(tmp_path)
    cryos = sorted(map(str, (shared_data / "cryo").glob("*.parquet")))
    loose = pa.schema(
        [field.with_nullable(nullable=True) for field in TRANSACTIONS]
    )  # cryo has no block_hash, no timestamp
    both = ds.dataset([*cryos, str(mine)], schema=loose, format="parquet").to_table()
    assert both.num_rows == table.num_rows + 3
    first = both.filter(ds.field("block_number") == 45216).to_pylist()[0]
    assert first["value_string"] == "1000000000000000000000"
    assert int.from_bytes(first["value_binary"], "big") == int(first["value_string"])
    assert (first["chain_id"], first["gas_price"], first["block_hash"]) == (143, 52_000_000_000, None)
    assert both.filter(ds.field("chain_id") == 1337).cast(TRANSACTIONS).equals(table)
