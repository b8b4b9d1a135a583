"""Encodes rows as batches of JSON lines: split by size, sorted by key."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import uuid
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

BATCH_BYTES = 16 * 1024 * 1024
LINE_BYTES = 1024 * 1024

Key = Union[str, Sequence[str], None]


class Batch(NamedTuple):
    body: bytes
    rows: int


def batches(rows: Iterable[Mapping[str, Any]], key: Key = None, most: Optional[int] = None) -> Iterator[Batch]:
    """With a key, the last row per key counts, and rows are sorted by it, so that equal rows give equal bytes."""
    room = most or int(os.environ.get("TRACE_BATCH_BYTES", BATCH_BYTES))
    lines: List[bytes] = []
    size = 0
    for line in _lines(rows, key):
        if lines and size + len(line) > room:
            yield Batch(b"".join(lines), len(lines))
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield Batch(b"".join(lines), len(lines))


def _lines(rows: Iterable[Mapping[str, Any]], key: Key) -> Iterator[bytes]:
    if key is None:
        for number, row in enumerate(rows):
            yield _line(row, number)
        return
    columns = (key,) if isinstance(key, str) else tuple(key)
    kept: Dict[Tuple[str, ...], bytes] = {}
    for number, row in enumerate(rows):
        line = _line(row, number)
        kept[_key_of(row, columns, number)] = line
    for _, line in sorted(kept.items()):
        yield line


def _line(row: Mapping[str, Any], number: int) -> bytes:
    if not isinstance(row, Mapping):
        raise TypeError(f"row {number} is not a mapping from column to value, but {type(row).__name__}")
    try:
        text = json.dumps(dict(row), default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as wrong:
        raise type(wrong)(f"row {number} cannot be written as JSON: {wrong}") from None
    line = text.encode("utf-8") + b"\n"
    if len(line) > LINE_BYTES:
        raise ValueError(f"row {number} has {len(line)} bytes; the maximum is {LINE_BYTES}")
    return line


def _key_of(row: Mapping[str, Any], columns: Sequence[str], number: int) -> Tuple[str, ...]:
    for column in columns:
        if row.get(column) is None:
            raise ValueError(f"row {number} has no {column!r}, which is part of the key")
    return tuple(json.dumps(row[column], default=_plain) for column in columns)


def _plain(value: Any) -> Any:
    """Values that JSON does not have, as the platform reads them."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "0x" + bytes(value).hex()
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone: add one, such as datetime.timezone.utc")
        return value.isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    if hasattr(value, "item"):  # a number of numpy
        plain = value.item()
        if isinstance(plain, float) and not math.isfinite(plain):
            raise ValueError(f"{plain} is not a number that can be stored")
        return plain
    raise TypeError(f"a {type(value).__name__} cannot be published")
