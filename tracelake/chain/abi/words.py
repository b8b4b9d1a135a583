"""Columns of words, all rows at once: a matrix of 32 bytes a row becomes an Arrow column, and a mask of good rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.chain.abi.types import AbiType

Words = np.ndarray[Any, np.dtype[np.uint8]]
"""Shape (rows, 32)."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]
_WORD = 32
_LIMIT = 10**38
"""The first number that decimal(38, 0) cannot hold."""


def well_formed(kind: AbiType, words: Words) -> Mask:
    """Which rows hold a value of this type: padding is zero, or the sign repeated."""
    if kind.kind == "fixed_bytes":
        return _empty(words[:, kind.size :])
    if kind.kind == "bool":
        return _empty(words[:, :31]) & (words[:, 31] <= 1)
    size = 20 if kind.kind == "address" else (kind.size or 0) // 8
    padding = words[:, : _WORD - size]
    if kind.kind != "int":
        return _empty(padding)
    sign = np.where(words[:, _WORD - size] >= 0x80, 0xFF, 0).astype(np.uint8)  # noqa: PLR2004 - the sign bit
    same: Mask = np.all(padding == sign[:, None], axis=1)
    return same


def _empty(part: Words) -> Mask:
    empty: Mask = np.all(part == 0, axis=1)
    return empty


def columns_of(kind: AbiType, name: str, words: Words) -> dict[str, pa.Array]:
    """Of rows that are well formed."""
    if kind.kind == "address":
        return {name: _binary(words[:, 12:])}
    if kind.kind == "fixed_bytes":
        return {name: _binary(words[:, : kind.size])}
    if kind.kind == "bool":
        return {name: pa.array(words[:, 31] == 1)}
    if not kind.is_wide:
        return {name: pa.array(_halves(words)[:, 3].astype(np.int64))}
    return {name: _texts(kind, words), f"{name}_decimal": _decimals(words, signed=kind.kind == "int")}


def fields_of(kind: AbiType, name: str) -> list[pa.Field]:
    """What `columns_of` gives, without rows."""
    return [pa.field(column, array.type) for column, array in columns_of(kind, name, _no_words()).items()]


def _no_words() -> Words:
    return np.zeros((0, _WORD), dtype=np.uint8)


def _halves(words: Words) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Four 64-bit numbers a row, the most significant first."""
    return np.ascontiguousarray(words).view(">u8").astype(np.uint64)


def _binary(part: Words) -> pa.Array:
    rows, size = part.shape
    offsets = np.arange(0, size * (rows + 1), size, dtype=np.int32)
    content = np.ascontiguousarray(part).tobytes()
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def _texts(kind: AbiType, words: Words) -> pa.Array:
    """Decimal texts. What fits 63 bits, as most does, is converted by Arrow; the rest one by one."""
    halves = _halves(words)
    small = ~halves[:, :3].any(axis=1) & (halves[:, 3] < 1 << 63)
    texts = pc.cast(pa.array(halves[:, 3].astype(np.int64)), pa.string())
    if small.all():
        return texts
    raw, signed = np.ascontiguousarray(words).tobytes(), kind.kind == "int"
    rows = (raw[_WORD * row : _WORD * (row + 1)] for row in np.flatnonzero(~small))
    large = [str(int.from_bytes(row, "big", signed=signed)) for row in rows]
    return pc.replace_with_mask(texts, pa.array(~small), pa.array(large, pa.string()))


def _decimals(words: Words, *, signed: bool) -> pa.Array:
    """decimal(38, 0): Arrow keeps it as 16 bytes little-endian, so the lower half of the word, turned round."""
    fits = _below(words, _LIMIT)
    if signed:  # a negative number's bits turned round are its size, less one
        fits |= _below(~words, _LIMIT - 1) & (words[:, 0] == 0xFF)  # noqa: PLR2004 - the sign
    content = np.ascontiguousarray(words[:, :15:-1]).tobytes()
    validity = pa.array(fits).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(words), [validity, pa.py_buffer(content)])


def _below(words: Words, limit: int) -> Mask:
    """Read as numbers without a sign."""
    halves, (top, bottom) = _halves(words), divmod(limit, 1 << 64)
    lower = (halves[:, 2] < top) | ((halves[:, 2] == top) & (halves[:, 3] < bottom))
    below: Mask = ~halves[:, :2].any(axis=1) & lower
    return below
