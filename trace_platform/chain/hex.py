"""JSON-RPC's spellings: `data` (two digits for each byte) and `quantity` (a number without leading zeros)."""

from __future__ import annotations

_from_hex = bytes.fromhex


def data(text: str) -> bytes:
    """`0x00ff` -> two bytes."""
    return _from_hex(text[2:])


def quantity(text: str) -> bytes:
    """`0x1ff` -> the number's bytes, big-endian and as few as possible; zero has none."""
    digits = text[2:]
    if len(digits) & 1:
        digits = "0" + digits
    return _from_hex(digits).lstrip(b"\0")


def number(text: str) -> int:
    return int(text, 16)


def as_data(value: bytes) -> str:
    return "0x" + value.hex()


def as_quantity(value: int) -> str:
    return hex(value)
