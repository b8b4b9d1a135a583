"""ABI data, value by value: what does not stand in one word. Never reads outside of what was given, nor without end."""

from __future__ import annotations

from typing import Any

from trace_platform.chain.abi_types import AbiType

WORD = 32
_ELEMENTS = 100_000
"""Elements of one array at most: data that names more than it can hold is refused before memory is."""


class Undecodable(ValueError):
    """The data does not hold what the event says."""


def value_at(kind: AbiType, data: bytes, base: int, head: int) -> Any:
    """The value whose head stands at `head`; offsets count from `base`. Numbers and bytes as Python has them."""
    if kind.elementary:
        return _word(kind, _slice(data, head, WORD))
    at = base + _length(data, head) if kind.dynamic else head
    if kind.kind in {"bytes", "string"}:
        content = _slice(data, at + WORD, _length(data, at))
        return content.decode(errors="replace") if kind.kind == "string" else content
    if kind.kind == "tuple":
        return dict(zip(kind.names, _row(kind.parts, data, at), strict=True))
    count = _length(data, at) if kind.size is None else kind.size
    start = at + WORD if kind.size is None else at
    if count > _ELEMENTS or (kind.size is None and start + count * WORD * kind.parts[0].words > len(data)):
        raise Undecodable("an array says that it is longer than its data")
    return _row(kind.parts * count, data, start)


def _row(kinds: tuple[AbiType, ...], data: bytes, start: int) -> list[Any]:
    values, head = [], start
    for kind in kinds:
        values.append(value_at(kind, data, start, head))
        head += kind.words * WORD
    return values


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


def _length(data: bytes, at: int) -> int:
    number = int.from_bytes(_slice(data, at, WORD), "big")
    if number > len(data):
        raise Undecodable("an offset or a length points outside of the data")
    return number


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at < 0 or at + size > len(data):
        raise Undecodable("the data is too short")
    return data[at : at + size]


def plain(value: Any) -> Any:
    """For JSON: numbers as decimal texts (JSON's own lose digits), bytes as hex."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value
