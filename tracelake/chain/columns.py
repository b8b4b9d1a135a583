"""Hex texts -> Arrow columns, a column at a time: one conversion for a whole column, not one for each value."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.chain.proofs.verify import Untrue

_PREFIX = np.frombuffer(b"0x", dtype=np.uint8)
Maybe = str | Any
"""A text, or None or UNSET where the column may be null."""


class TooLarge(ValueError):
    """A number that needs more than the 63 bits that its column has; cryo's column of it has 64."""


def fixed(texts: Sequence[str], size: int) -> pa.Array:
    """Hashes and addresses: each exactly `size` bytes."""
    _check_sizes(texts, size)
    return _binary(len(texts), None, _steps(len(texts), size), _without_prefixes(texts, 2 + 2 * size))


def fixed_or_null(texts: Sequence[Maybe], size: int) -> pa.Array:
    if all(texts):
        return fixed(texts, size)
    there = list(map(bool, texts))
    present = [text for text in texts if text]
    _check_sizes(present, size)
    offsets = _offsets(np.array(there, dtype=np.int32) * size)
    content = _without_prefixes(present, 2 + 2 * size)
    return _binary(len(texts), pa.array(there, pa.bool_()).buffers()[1], offsets, content)


def varying(texts: Sequence[str]) -> pa.Array:
    """Data of any length."""
    sizes = np.fromiter(map(len, texts), dtype=np.int32, count=len(texts))
    return _binary(len(texts), None, _offsets(sizes // 2 - 1), _bytes("".join(texts)))


def integers(texts: Sequence[str]) -> pa.Array:
    return _int64([int(text, 16) for text in texts])


def integers_or_null(texts: Sequence[Maybe]) -> pa.Array:
    return _int64([int(text, 16) if text else None for text in texts])


def words(texts: Sequence[str]) -> pa.Array:
    """u256 quantities as 32 bytes big-endian."""
    digits = "".join([text[2:].zfill(64) for text in texts])
    return _binary(len(texts), None, _steps(len(texts), 32), unhexlify(digits))


def positions(counts: Sequence[int]) -> pa.Array:
    """0, 1, 2, ... for the rows of each block: where their places were checked already."""
    ends = np.cumsum(counts)
    return pa.array(np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts))


def constant(value: int, count: int) -> pa.Array:
    return pa.array(np.full(count, value, dtype=np.int64))


def repeated(values: pa.Array, counts: Sequence[int]) -> pa.Array:
    """A block's value for each of its rows."""
    return values.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def _int64(values: Iterable[int | None]) -> pa.Array:
    try:
        numbers = pa.array(values, pa.int64())
    except (OverflowError, pa.ArrowInvalid):
        raise TooLarge("a number is larger than the 64 bits of its column hold") from None
    if (pc.min(numbers).as_py() or 0) < 0:
        raise Untrue("a number is below zero")
    return numbers


def _check_sizes(texts: Sequence[str], size: int) -> None:
    if set(map(len, texts)) - {2 + 2 * size}:
        raise Untrue(f"a value that should have {size} bytes has not")


def _without_prefixes(texts: Sequence[str], width: int) -> bytes:
    """Texts of one width, as bytes: their prefixes are cut off all at once."""
    table = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(len(texts), width)
    if not (table[:, :2] == _PREFIX).all():
        raise Untrue("a hex text is broken")
    return unhexlify(table[:, 2:].tobytes())


def _steps(count: int, size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.arange(0, size * (count + 1), size, dtype=np.int32)


def _bytes(joined: str) -> bytes:
    return unhexlify(joined.replace("0x", ""))


def _offsets(sizes: np.ndarray[Any, np.dtype[np.int32]]) -> np.ndarray[Any, np.dtype[np.int32]]:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _binary(count: int, validity: pa.Buffer | None, offsets: Any, content: bytes) -> pa.Array:
    if int(offsets[-1]) != len(content):
        raise Untrue("a hex text is broken")
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), pa.py_buffer(content)])
