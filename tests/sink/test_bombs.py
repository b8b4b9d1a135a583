"""Small files that unpack to very much: refused before they do, with the reason, and in little memory. No Spark."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.systems.sink import parquet
from tests.support.waiting import SECONDS
from tracelake.data.buffered.batch_fault import BatchFault
from tracelake.data.buffered.check_batch import CheckLimits, check_batch
from tracelake.domain.buffered import Column, Declaration

DECLARED = Declaration(
    (Column("key", "text", nullable=False), Column("raw", "bytes"), Column("doc", "json"), Column("n", "bigint")),
    ("key",),
)
MIB = 1024 * 1024
LIMITS = CheckLimits(line_bytes=1024, unpacked_bytes=MIB)
PARQUET = "application/vnd.apache.parquet"
STREAM = "application/vnd.apache.arrow.stream"
FILE = "application/vnd.apache.arrow.file"
TOO_MUCH = "unpacks to more than 1048576 bytes"


def arrow(table: pa.Table, compression: str | None = None, new: Callable[..., Any] = pa.ipc.new_stream) -> bytes:
    out = io.BytesIO()
    with new(out, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return out.getvalue()


def keys(count: int) -> pa.Array:
    return pa.array([f"k{n}" for n in range(count)])


def views_of(text: str, count: int) -> pa.Array:
    _, view, content = pa.array([text], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), count, [None, pa.py_buffer(view.to_pybytes()[:16] * count), content])


ZEROS = pa.table({"key": keys(8), "raw": [bytes(MIB)] * 8})
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 10_000]))
LONG = pa.table({"key": keys(1000), "doc": REPEATED})
EMPTY_ROWS = pa.table({"key": pa.nulls(1_000_000)})
VIEWS = pa.table({"key": keys(1000), "doc": views_of("x" * 10_000, 1000)})
WIDE = pa.table({"key": keys(2), "raw": pa.nulls(2, pa.binary(2 * MIB))})
BOMBS = {
    "Parquet, compressed": (PARQUET, parquet(ZEROS, use_dictionary=False), TOO_MUCH),
    "Parquet, pages of the second version": (
        PARQUET,
        parquet(ZEROS, use_dictionary=False, data_page_version="2.0", compression="gzip"),
        TOO_MUCH,
    ),
    "Parquet, one long value again and again": (PARQUET, parquet(LONG), TOO_MUCH),
    "Parquet, one short value again and again": (PARQUET, parquet(pa.table({"key": ["a"] * 200_000})), TOO_MUCH),
    "Parquet, rows of nothing": (PARQUET, parquet(EMPTY_ROWS), TOO_MUCH),
    "Parquet, wide and empty": (PARQUET, parquet(WIDE), "a row of the batch may unpack to more"),
    "Parquet, text made of text": (
        PARQUET,
        parquet(LONG, use_dictionary=False, column_encoding={"key": "DELTA_BYTE_ARRAY", "doc": "DELTA_BYTE_ARRAY"}),
        "unsupported encoding",
    ),
    "Parquet, a large footer": (
        PARQUET,
        parquet(pa.table({"key": ["a"]}).replace_schema_metadata({"more": "x" * 2 * MIB})),
        "footer",
    ),
    "a stream, zstd": (STREAM, arrow(ZEROS, "zstd"), TOO_MUCH),
    "a stream, lz4": (STREAM, arrow(ZEROS, "lz4"), TOO_MUCH),
    "a file, zstd": (FILE, arrow(ZEROS, "zstd", pa.ipc.new_file), TOO_MUCH),
    "a stream, a dictionary": (STREAM, arrow(LONG), TOO_MUCH),
    "a file, a compressed dictionary": (FILE, arrow(LONG, "zstd", pa.ipc.new_file), TOO_MUCH),
    "a stream, rows of nothing": (STREAM, arrow(EMPTY_ROWS), TOO_MUCH),
    "a stream, many views of one text": (STREAM, arrow(VIEWS), TOO_MUCH),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_unpacks_to_much_is_refused_with_the_reason(name: str) -> None:
    kind, body, said = BOMBS[name]
    with pytest.raises(BatchFault) as raised:
        check_batch(body, kind, DECLARED, LIMITS)
    assert said in raised.value.reason


ROWS = pa.table(
    {
        "key": keys(500),
        "doc": pa.array(['{"a":1}', "[]"] * 250).dictionary_encode(),
        "raw": pa.array([b"\0" * 9, None] * 250),
        "n": pa.array(range(500), pa.int64()),
    }
)
TAKEN = {
    "plain": (PARQUET, parquet(ROWS, use_dictionary=False, compression="none")),
    "several groups and pages": (PARQUET, parquet(ROWS, row_group_size=99, data_page_size=64, write_batch_size=8)),
    "the second version": (PARQUET, parquet(ROWS, data_page_version="2.0", compression="snappy")),
    "deltas and split streams": (
        PARQUET,
        parquet(ROWS, use_dictionary=["key", "doc"], column_encoding={"raw": "PLAIN", "n": "DELTA_BINARY_PACKED"}),
    ),
    "checksums and indexes": (PARQUET, parquet(ROWS, write_page_checksum=True, write_page_index=True)),
    "a stream": (STREAM, arrow(ROWS)),
    "a compressed stream": (STREAM, arrow(ROWS, "lz4")),
    "a file": (FILE, arrow(ROWS, None, pa.ipc.new_file)),
    "a compressed file": (FILE, arrow(ROWS, "zstd", pa.ipc.new_file)),
    "views": (STREAM, arrow(ROWS.set_column(0, "key", keys(500).cast(pa.string_view())))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_valid_file_is_read_whole_with_every_compression(name: str) -> None:
    kind, body = TAKEN[name]
    rows = check_batch(body, kind, DECLARED, LIMITS)
    assert rows.to_pylist() == ROWS.select(DECLARED.names).to_pylist()


def test_a_header_that_says_less_than_it_unpacks_to_is_refused() -> None:
    fields = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("raw", pa.binary(), nullable=False)])
    honest = parquet(pa.table({"key": ["a"], "raw": [bytes(4 * MIB)]}, fields), use_dictionary=False)
    stated_size = _varint(4 * MIB + 4)
    assert honest.count(stated_size) == 1, "the size stands in the header of the page"
    with pytest.raises(BatchFault, match="cannot be read"):
        check_batch(honest.replace(stated_size, _varint(MIB // 2, len(stated_size))), PARQUET, DECLARED, LIMITS)
    packed = arrow(ZEROS, "zstd")
    size = (8 * MIB).to_bytes(8, "little")
    assert packed.count(size) == 1
    for lie in (1, 2**62, -2 % 2**64):
        with pytest.raises(BatchFault):
            check_batch(packed.replace(size, lie.to_bytes(8, "little")), STREAM, DECLARED, LIMITS)


def test_offsets_that_lead_out_of_the_file_are_refused_and_not_followed() -> None:
    body = arrow(pa.table({"key": ["aaaa", "bbbb"]}))
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 4, 8))
    assert body.count(offsets) == 1
    wrong = body.replace(offsets, b"".join(n.to_bytes(4, "little") for n in (0, 4, 2**31 - 1)))
    with pytest.raises(BatchFault, match="cannot be read"):
        check_batch(wrong, STREAM, DECLARED, LIMITS)


def _varint(value: int, size: int = 0) -> bytes:
    """As Thrift writes a positive number, in at least so many bytes."""
    left = value * 2
    made: list[int] = []
    while left >= 128 or len(made) + 1 < size:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


def test_real_decompression_bombs_are_refused_by_a_process_with_less_memory() -> None:
    run = subprocess.run(program("sink_bombs"), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stderr[-2_000:]
    assert run.stdout.splitlines() == [
        f"{name}: the batch unpacks to more than {256 * MIB} bytes" for name in ("pages", "values", "buffers")
    ]
