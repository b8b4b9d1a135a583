"""Solidity's types, read from a JSON ABI and written as signatures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from tracelake.errors import InvalidAbi

Kind = Literal["uint", "int", "address", "bool", "fixed_bytes", "bytes", "string", "array", "tuple"]

_ARRAY = re.compile(r"(.*)\[([0-9]*)\]")
_NUMBER = re.compile(r"(u?int)([0-9]{0,4})")
_FIXED_BYTES = re.compile(r"bytes([0-9]{1,4})")
_WIDEST = 256
_WORD = 32
_MOST_WORDS = 100_000
"""The most words of a fixed-size array: no log has more."""
_SMALL_UINT, _SMALL_INT = 56, 64
"""Bits that fit an int64."""
_DEEPEST = 16
"""The maximum nesting of arrays and tuples; deeper ABIs are refused."""


@dataclass(frozen=True, slots=True)
class AbiType:
    """`size`: bits of a number, bytes of fixed bytes, elements of an array (None if it may have any number)."""

    kind: Kind
    size: int | None = None
    parts: tuple[AbiType, ...] = ()
    """The element of an array, the fields of a tuple."""
    names: tuple[str, ...] = ()
    """Of a tuple's fields."""

    def __str__(self) -> str:
        if self.kind == "array":
            return f"{self.parts[0]}[{'' if self.size is None else self.size}]"
        if self.kind == "tuple":
            return f"({','.join(map(str, self.parts))})"
        if self.kind == "fixed_bytes":
            return f"bytes{self.size}"
        return f"{self.kind}{self.size or ''}"

    @property
    def dynamic(self) -> bool:
        """Whether it is encoded behind an offset."""
        if self.kind == "array":
            return self.size is None or self.parts[0].dynamic
        return self.kind in {"bytes", "string"} or any(part.dynamic for part in self.parts)

    @property
    def elementary(self) -> bool:
        """Whether it is encoded in one word."""
        return self.kind in {"uint", "int", "address", "bool", "fixed_bytes"}

    @property
    def is_wide(self) -> bool:
        """A number that an int64 may not hold."""
        return (self.kind == "uint" and (self.size or 0) > _SMALL_UINT) or (
            self.kind == "int" and (self.size or 0) > _SMALL_INT
        )

    @property
    def words(self) -> int:
        """Its number of words in the head."""
        if self.dynamic or self.elementary:
            return 1
        if self.kind == "array":
            return (self.size or 0) * self.parts[0].words
        return sum(part.words for part in self.parts)


def read_type(text: Any, components: Any, where: str, depth: int = 0) -> AbiType:
    if not isinstance(text, str) or depth > _DEEPEST:
        raise InvalidAbi("a type is a text, and not nested without end", where=where)
    if array := _ARRAY.fullmatch(text):
        return _array(array, components, where, depth)
    if text == "tuple":
        return _tuple(components, where, depth)
    if number := _NUMBER.fullmatch(text):
        bits = int(number[2] or _WIDEST)
        if not 0 < bits <= _WIDEST or bits % 8:
            raise InvalidAbi(f"there is no type {text}", where=where)
        return AbiType("uint" if number[1] == "uint" else "int", bits)
    if fixed := _FIXED_BYTES.fullmatch(text):
        if not 1 <= int(fixed[1]) <= _WORD:
            raise InvalidAbi(f"there is no type {text}", where=where)
        return AbiType("fixed_bytes", int(fixed[1]))
    if text == "function":
        return AbiType("fixed_bytes", 24)
    simple: dict[str, Kind] = {"address": "address", "bool": "bool", "bytes": "bytes", "string": "string"}
    if text not in simple:
        raise InvalidAbi(f"there is no type {text[:80]!r}, or none that can be read", where=where)
    return AbiType(simple[text])


def _array(found: re.Match[str], components: Any, where: str, depth: int) -> AbiType:
    element = read_type(found[1], components, where, depth + 1)
    if not found[2]:
        return AbiType("array", None, (element,))
    digits = found[2].lstrip("0")
    if not digits or len(digits) > len(str(_MOST_WORDS)) or int(digits) * element.words > _MOST_WORDS:
        raise InvalidAbi(f"an array of a fixed size has from 1 to {_MOST_WORDS} words", where=where)
    return AbiType("array", int(digits), (element,))


def _tuple(components: Any, where: str, depth: int) -> AbiType:
    if (
        not isinstance(components, list)
        or not components
        or not all(isinstance(component, dict) for component in components)
    ):
        raise InvalidAbi("a tuple has a list of components, one or more", where=where)
    parts = tuple(
        read_type(component.get("type"), component.get("components"), f"{where}/components/{place}", depth + 1)
        for place, component in enumerate(components)
    )
    names = tuple(str(component.get("name") or f"arg{place}") for place, component in enumerate(components))
    if len(set(names)) < len(names):
        raise InvalidAbi("two components of a tuple have one name", where=where)
    return AbiType("tuple", None, parts, names)
