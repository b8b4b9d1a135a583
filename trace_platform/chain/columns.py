"""Hex texts -> Arrow columns, a column at a time: one conversion for a whole column, not one for each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trace_platform.chain.verify import Untrue

Maybe = str | Any
"""A text, or None or UNSET where the column may be null."""


def fixed(texts: Sequence[str], size: int) -> pa.Array:
    """Hashes and addresses: each exactly `size` bytes."""
    wanted = 2 + 2 * size
    if set(map(len, texts)) - {wanted}:
        raise Untrue(f"a value that should have {size} bytes has not")
    offsets = np.arange(0, size * (len(texts) + 1), size, dtype=np.int32)
    return _binary(len(texts), None, offsets, _bytes("".join(texts)))


def fixed_or_null(texts: Sequence[Maybe], size: int) -> pa.Array:
    there = [bool(text) for text in texts]
    present = [text for text in texts if text]
    if set(map(len, present)) - {2 + 2 * size}:
        raise Untrue(f"a value that should have {size} bytes has not")
    mask = np.array(there, dtype=np.int32)
    return _binary(
        len(texts), pa.array(there, pa.bool_()).buffers()[1], _offsets(mask * size), _bytes("".join(present))
    )


def varying(texts: Sequence[str]) -> pa.Array:
    """Data of any length."""
    sizes = np.fromiter(map(len, texts), dtype=np.int32, count=len(texts))
    return _binary(len(texts), None, _offsets(sizes // 2 - 1), _bytes("".join(texts)))


def integers(texts: Sequence[str]) -> pa.Array:
    return pa.array([int(text, 16) for text in texts], pa.int64())


def integers_or_null(texts: Sequence[Maybe]) -> pa.Array:
    return pa.array([int(text, 16) if text else None for text in texts], pa.int64())


def words(texts: Sequence[str]) -> pa.Array:
    """u256 quantities as 32 bytes big-endian."""
    return fixed(["0x" + text[2:].zfill(64) for text in texts], 32)


def constant(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, dtype=np.int64))


def repeated(values: pa.Array, counts: Sequence[int]) -> pa.Array:
    """A block's value for each of its rows."""
    return values.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _bytes(joined: str) -> bytes:
    return bytes.fromhex(joined.replace("0x", ""))


def _offsets(sizes: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _binary(count: int, validity: pa.Buffer | None, offsets: Any, content: bytes) -> pa.Array:
    if int(offsets[-1]) != len(content):
        raise Untrue("a hex text is broken")
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(content)])
