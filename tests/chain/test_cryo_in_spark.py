"""Cryo's own files and ours become one table in Spark, as docs/chain.md says. 10 s.

Spark does not take cryo's unsigned 64 bits for a bigint: its files are read with their own schema, and cast to ours.
"""

from __future__ import annotations

from pathlib import Path

from tests.spark_session import shared_session
from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.chain.devchain.chain import Chain
from trace_platform.chain.devchain.truth import truth_table
from trace_platform.domain.objects import Folder
from trace_platform.spark.parquet_reader import read_files
from trace_platform.spark.parquet_writer import Place, write_table


def test_cryos_files_are_cast_to_our_columns_and_joined_to_our_rows(shared_data: Path, tmp_path: Path) -> None:
    objects, folder = DiskObjects(tmp_path), Folder("trace", ("both",))
    table = truth_table(Chain(blocks=30), "transactions", 0, 30)
    written = write_table(Place(objects, folder), "ours", table)
    ours = read_files(shared_session(), objects, [folder.object(written.file.name)], written.columns)
    cryos = shared_session().read.parquet(*[path.as_uri() for path in (shared_data / "cryo").glob("*.parquet")])
    cast = cryos.select([cryos[name].cast(ours.schema[name].dataType) for name in cryos.columns])
    both = ours.unionByName(cast, allowMissingColumns=True)
    assert [field.dataType for field in both.schema] == [field.dataType for field in ours.schema]
    rows = [row.asDict() for row in both.collect()]
    assert [row for row in rows if row["chain_id"] == 1337] == table.to_pylist()
    assert len(rows) == table.num_rows + 3
    (first,) = [row for row in rows if row["block_number"] == 45216]
    assert int.from_bytes(first["value_binary"], "big") == int(first["value_string"]) == 10**21
    assert (first["chain_id"], first["gas_price"], first["block_hash"]) == (143, 52_000_000_000, None)
