"""Counts the rows of a Parquet file, and compares their block numbers with the partition of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from tracelake.wire.task.markers import NUMBER
from tracelake.wire.user.ledger import LedgerPartition


def check_rows(file: IO[bytes], entry: Mapping[str, Any], partition: LedgerPartition) -> tuple[int, list[str]]:
    """How many rows it has, and what is wrong with them. A batch of one column is in memory at a time."""
    import pyarrow as pa

    file.seek(0)
    try:
        rows, least, greatest = _scan(file)
    except (pa.ArrowException, OSError) as wrong:
        return 0, [f"cannot be read as Parquet: {str(wrong).splitlines()[0]}"]
    return rows, list(_problems(rows, least, greatest, entry, partition))


def _scan(file: IO[bytes]) -> tuple[int, int | None, int | None]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    names = parquet.schema_arrow.names
    columns = [NUMBER] if NUMBER in names else names[:1]
    rows, ends = 0, list[int]()
    for batch in parquet.iter_batches(columns=columns):
        rows += batch.num_rows
        if columns == [NUMBER] and batch.num_rows:
            found = pc.min_max(batch.column(0))
            ends += [end for end in (found["min"].as_py(), found["max"].as_py()) if isinstance(end, int)]
    return rows, min(ends, default=None), max(ends, default=None)


def _problems(
    rows: int, least: int | None, greatest: int | None, entry: Mapping[str, Any], partition: LedgerPartition
) -> Iterator[str]:
    if rows != entry["rows"]:
        yield f"has {rows} rows, not {entry['rows']}"
    if least is None or greatest is None:
        return
    if (
        partition.start is not None
        and partition.end is not None
        and not partition.start <= least <= greatest <= partition.end
    ):
        yield f"has blocks {least} to {greatest}, and its partition is {partition.key}"
    if entry.get("numbers") and [least, greatest] != list(entry["numbers"]):
        yield f"has blocks {least} to {greatest}, not {entry['numbers'][0]} to {entry['numbers'][1]}"
