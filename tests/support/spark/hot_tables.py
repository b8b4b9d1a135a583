"""Small hot tables for tests, and linked blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa

from tracelake.data.hot.tables import HotTable
from tracelake.data.hot.view import HeldSnapshot, held
from tracelake.data.hot.writer import BlockMark

ROWS = pa.schema([("block_number", pa.int64()), ("position", pa.int32()), ("content", pa.int64())])


def hot_table(schema: pa.Schema = ROWS, unique_key: tuple[str, ...] = ("block_number", "position")) -> HotTable:
    return HotTable(uuid4(), uuid4(), uuid4(), schema, unique_key)


def rows_of(contents: Iterable[tuple[int, int, int]]) -> pa.Table:
    """Rows (number, position, content)."""
    listed = [dict(zip(ROWS.names, row, strict=True)) for row in contents]
    return pa.Table.from_pylist(listed, ROWS)


@contextmanager
def unheld(dsn: str) -> Iterator[HeldSnapshot]:
    """A snapshot to take a view in, for a reader that holds none."""
    with held(dsn) as snapshot:
        yield replace(snapshot, name="")


def chain(start: int, count: int, branch: str = "a", parent: bytes | None = None) -> list[BlockMark]:
    """Blocks of one branch; the parent of the first is `parent`, or the same branch's block before it."""
    marks = []
    above = block_hash(start - 1, branch) if parent is None else parent
    for number in range(start, start + count):
        marks.append(BlockMark(number, block_hash(number, branch), above))
        above = marks[-1].hash
    return marks


def block_hash(number: int, branch: str) -> bytes:
    return f"{branch} {number}".encode().ljust(32, b"\0")
