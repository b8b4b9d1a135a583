"""Recursive length prefix encoding, the way in: what nodes hash is written by it.

Items of a list are given encoded already, so that a caller who knows their shape pays for no dispatch.
"""

from __future__ import annotations

from collections.abc import Iterable

SHORT = 56
"""Lengths below this are part of the first byte."""
_BYTES = [bytes([0x80 + size]) for size in range(SHORT)]
_LIST = [bytes([0xC0 + size]) for size in range(SHORT)]
ASCII = b"\x80"
"""A single byte below this is its own encoding."""


def encode_bytes(value: bytes) -> bytes:
    size = len(value)
    if size == 1 and value < ASCII:
        return value
    if size < SHORT:
        return _BYTES[size] + value
    return _long(0xB7, size) + value


def encode_int(value: int) -> bytes:
    return encode_bytes(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def encode_list(items: Iterable[bytes]) -> bytes:
    body = b"".join(items)
    size = len(body)
    return (_LIST[size] if size < SHORT else _long(0xF7, size)) + body


def _long(base: int, size: int) -> bytes:
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([base + len(digits)]) + digits
