"""Batches of a few kilobytes that are gigabytes, in a process that may have half of one: `test_bombs.py` runs it."""

from __future__ import annotations

import io
import resource
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.data.buffered.batch_fault import BatchFault
from tracelake.data.buffered.check_batch import CheckLimits, check_batch
from tracelake.domain.buffered import Column, Declaration
from tracelake.settings import SinkSettings

MIB = 1024 * 1024
MORE = 512 * MIB
"""Memory that it may take besides what it has when it begins to read."""
DECLARED = Declaration((Column("key", "text", nullable=False), Column("raw", "bytes")), ("key",))
PART = pa.table({"key": [str(n) for n in range(32)], "raw": [bytes(MIB)] * 32})
PARTS = 32
PARQUET = "application/vnd.apache.parquet"
STREAM = "application/vnd.apache.arrow.stream"


def pages() -> bytes:
    """1 GiB in row groups of 32 MiB."""
    out = io.BytesIO()
    with pq.ParquetWriter(out, PART.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(PARTS):
            writer.write_table(PART)
    return out.getvalue()


def values() -> bytes:
    """1 TiB: one value of a mebibyte, a million times."""
    out = io.BytesIO()
    count = 1_000_000
    nothing = pa.array(memoryview(bytes(4 * count)).cast("i"), pa.int32())
    raw = pa.DictionaryArray.from_arrays(nothing, pa.array([bytes(MIB)]))
    key = pa.DictionaryArray.from_arrays(nothing, pa.array(["k"]))
    pq.write_table(pa.table({"key": key, "raw": raw}), out, compression="zstd")
    return out.getvalue()


def buffers() -> bytes:
    """1 GiB in compressed buffers."""
    out = io.BytesIO()
    with pa.ipc.new_stream(out, PART.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        for _ in range(PARTS):
            writer.write_table(PART)
    return out.getvalue()


def main() -> None:
    settings = SinkSettings()
    bombs: list[tuple[Any, str]] = [(pages, PARQUET), (values, PARQUET), (buffers, STREAM)]
    made = [(make.__name__, make(), kind) for make, kind in bombs]
    assert all(len(body) < settings.batch_bytes for _, body, _ in made)
    pa.default_memory_pool().release_unused()
    with open("/proc/self/statm") as now:  # noqa: PTH123 - no file of anybody's
        have = int(now.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + MORE, have + MORE))
    for name, body, kind in made:
        try:
            check_batch(body, kind, DECLARED, CheckLimits(settings.line_bytes, settings.unpacked_bytes))
        except BatchFault as fault:
            print(f"{name}: {fault.reason.partition(';')[0]}")  # noqa: T201 - to the test


if __name__ == "__main__":
    main()
