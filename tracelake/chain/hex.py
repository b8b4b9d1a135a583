"""JSON-RPC's spellings: `data` (two digits for each byte) and `quantity` (a number without leading zeros)."""

from __future__ import annotations


def number(text: str) -> int:
    return int(text, 16)


def as_data(value: bytes) -> str:
    return "0x" + value.hex()


def as_quantity(value: int) -> str:
    return hex(value)
