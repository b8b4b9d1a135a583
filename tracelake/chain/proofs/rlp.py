"""Recursive length prefix encoding, the way in: what nodes hash is written by it.

Two spellings of the same rules. In bytes, for trees. And in hex text, for everything that arrives as hex text: a whole
header or transaction is put together as text and becomes bytes once, which is several times faster than field by field.
Fields of a fixed size are checked for it: text of the wrong length could make the right bytes with other borders.
Items of a list are given encoded already.
"""

from __future__ import annotations

from collections.abc import Iterable

SHORT = 56
"""Lengths below this are part of the first byte."""
TABLE = 4096
"""Lengths below this have their prefix in a table: all but a few transactions and receipts."""


def _prefix(base: int, size: int) -> bytes:
    return bytes([base + size]) if size < SHORT else _long(base + SHORT - 1, size)


def _long(base: int, size: int) -> bytes:
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([base + len(digits)]) + digits


BYTES_PREFIX = [_prefix(0x80, size) for size in range(TABLE)]
LIST_PREFIX = [_prefix(0xC0, size) for size in range(TABLE)]
_BYTES_TEXT = [prefix.hex() for prefix in BYTES_PREFIX]
_LIST_TEXT = [prefix.hex() for prefix in LIST_PREFIX]
_QUANTITY_TEXT = [f"{0x80 + (size - 1) // 2:02x}{'0' * (size % 2)}" for size in range(2 * SHORT)]
"""By length of the text with its `0x`: the prefix, and the zero that makes an odd number of digits whole bytes."""
_ZERO = ("0", "")
ASCII = b"\x80"
"""A single byte below this is its own encoding."""


def encode_bytes(value: bytes) -> bytes:
    size = len(value)
    if size == 1 and value < ASCII:
        return value
    return (BYTES_PREFIX[size] if size < TABLE else _long(0xB7, size)) + value


def encode_int(value: int) -> bytes:
    return encode_bytes(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def encode_list(items: Iterable[bytes]) -> bytes:
    body = b"".join(items)
    size = len(body)
    return (LIST_PREFIX[size] if size < TABLE else _long(0xF7, size)) + body


def text_of_word(text: str) -> str:
    """A hash: 32 bytes."""
    if len(text) != 66:  # noqa: PLR2004 - 0x and 64 digits
        raise ValueError("a hash does not have 32 bytes")
    return "a0" + text[2:]


def text_of_address(text: str) -> str:
    if len(text) != 42:  # noqa: PLR2004 - 0x and 40 digits
        raise ValueError("an address does not have 20 bytes")
    return "94" + text[2:]


def text_of_data(text: str) -> str:
    """Any number of bytes."""
    size = len(text) // 2 - 1
    if size == 1 and text[2] < "8":
        return text[2:]
    return (_BYTES_TEXT[size] if size < TABLE else _long(0xB7, size).hex()) + text[2:]


def text_of_quantity(text: str) -> str:
    """A number: its bytes, as few as possible; zero has none."""
    size = len(text)
    if size == 3:  # noqa: PLR2004 - 0x and one digit
        return "80" if text == "0x0" else "0" + text[2]
    digits = text[2:]
    if digits[:1] in _ZERO:
        return text_of_quantity("0x" + (digits.lstrip("0") or "0"))
    if size == 4 and digits < "80":  # noqa: PLR2004 - one byte
        return digits
    try:
        return _QUANTITY_TEXT[size] + digits
    except IndexError:
        raise ValueError("a number has more digits than any on a chain") from None


class _Quantities(dict[object, str]):
    """`text_of_quantity` of small numbers, remembered: gas, fees, indexes and kinds come again and again."""

    _MOST = 1 << 16

    def __missing__(self, text: object) -> str:
        if not isinstance(text, str):
            raise ValueError("a number that must be there is missing")  # noqa: TRY004 - about the answer
        if len(self) >= self._MOST:
            self.clear()
        spelled = self[text] = text_of_quantity(text)
        return spelled


QUANTITIES = _Quantities()


def text_of_list(body: str) -> str:
    size = len(body) >> 1
    return (_LIST_TEXT[size] if size < TABLE else _long(0xF7, size).hex()) + body
