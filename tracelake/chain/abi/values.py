"""Decodes ABI values that need more than one word. Reads are bounded by the data."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

from tracelake.chain.abi.types import AbiType

WORD = 32
_MOST = 4
"""How many times its data a log may unpack to. Compilers never write more than the data itself; but many offsets may
point to one place, and so turn a few kilobytes into gigabytes."""


class Undecodable(ValueError):
    """The data does not match the event."""


class LogData:
    """The data of one log, and how much may still be decoded from it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST * len(data)

    def value(self, kind: AbiType, head: int) -> Any:
        """Decodes the value whose head is at `head`, as a Python number, bytes, ..."""
        return self._value(kind, 0, head)

    def _value(self, kind: AbiType, base: int, head: int) -> Any:
        """Offsets count from `base`."""
        if kind.elementary:
            self._spend(WORD)
            return _word(kind, self._slice(head, WORD))
        at = head
        if kind.dynamic:
            self._spend(WORD)
            at = base + self._length(head)
        if kind.kind in {"bytes", "string"}:
            return self._content(kind, at)
        if kind.kind == "tuple":
            return dict(zip(kind.names, self._row(kind.parts, at), strict=True))
        count = self._length(at) if kind.size is None else kind.size
        start = at + WORD if kind.size is None else at
        if start + count * WORD * kind.parts[0].words > len(self._data):
            raise Undecodable("an array claims to be longer than its data")
        return self._row(repeat(kind.parts[0], count), start)

    def _content(self, kind: AbiType, at: int) -> bytes | str:
        length = self._length(at)
        self._spend(length)
        content = self._slice(at + WORD, length)
        return content.decode(errors="replace") if kind.kind == "string" else content

    def _row(self, kinds: Iterable[AbiType], start: int) -> list[Any]:
        values, head = [], start
        for kind in kinds:
            values.append(self._value(kind, start, head))
            head += kind.words * WORD
        return values

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Undecodable("it unpacks to much more than its data")

    def _length(self, at: int) -> int:
        number = int.from_bytes(self._slice(at, WORD), "big")
        if number > len(self._data):
            raise Undecodable("an offset or a length points outside of the data")
        return number

    def _slice(self, at: int, size: int) -> bytes:
        if at < 0 or at + size > len(self._data):
            raise Undecodable("the data is too short")
        return self._data[at : at + size]


def _word(kind: AbiType, word: bytes) -> Any:
    if kind.kind == "fixed_bytes":
        size = kind.size or 0
        return _expect(word[:size], rest=word[size:])
    if kind.kind == "address":
        return _expect(word[12:], rest=word[:12])
    number = int.from_bytes(word, "big", signed=kind.kind == "int")
    bits = 1 if kind.kind == "bool" else (kind.size or 0)
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if kind.kind == "int" else (0, 1 << bits)
    if not low <= number < high:
        raise Undecodable(f"a number does not fit into {kind}")
    return bool(number) if kind.kind == "bool" else number


def _expect(value: bytes, *, rest: bytes) -> bytes:
    if rest.strip(b"\0"):
        raise Undecodable("what should be padding is not zero")
    return value


def plain(value: Any) -> Any:
    """For JSON: numbers as decimal texts (JSON's own lose digits), bytes as hex."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
