"""Converts texts and JSON values to Arrow columns: each value keeps its meaning, or is refused.

Arrow alone is less strict. It truncates 1.9 to 1, takes 0xff for -1 and 1e999 for infinity, and changes a decimal of
many digits, or fails.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from math import isfinite
from types import NoneType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.data.files.shape import arrow_type

REFUSALS: Final = (pa.ArrowException, ValueError, TypeError, ArithmeticError)
"""Raised for a value that does not fit."""
ZONED: Final = re.compile(r".*(Z|[+-]\d\d:?\d\d)")
HEX: Final = re.compile(r"0[xX][0-9a-fA-F]+")
WHOLE: Final = re.compile(r"-?\d+", re.ASCII)
NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
PLAIN_CHARS: Final = 38
"""Arrow parses a decimal of this many characters without an exponent exactly."""
WHOLE_DIGITS: Final = 19
"""The digits of the largest supported integer."""
WIDEST: Final = "decimal(38,0)"


def from_text(values: Sequence[str | None], kind: str) -> Any:
    """Convert texts to values of the type."""
    to = arrow_type(kind)
    if kind == "timestamp":
        values = [_zoned(value) for value in values]
    texts = pa.array(values, pa.string())
    if pa.types.is_decimal(to):
        return _decimals(texts, to)
    if pa.types.is_integer(to):
        return _unhexed(texts).cast(to)
    if pa.types.is_floating(to):
        return _nearest(texts, to)
    if kind == "string":
        _refuse_any(pc.match_substring(texts, "\0"))  # a full disk, or another encoding
    return texts.cast(to)


def from_json(values: Sequence[Any], kind: str) -> Any:
    """Convert JSON values. A number with a point or an exponent is `Raw`: its text, so that no digit is lost."""
    to = arrow_type(kind)
    if kind in ("string", "boolean", "double"):
        return pa.array(_texts(values) if kind == "string" else _doubles(values) if kind == "double" else values, to)
    if pa.types.is_integer(to):
        return _whole(values, to)
    if kind == "float":
        return from_text([_digits(value) for value in values], kind)
    if pa.types.is_decimal(to):
        return from_text([value if isinstance(value, str) else _digits(value) for value in values], kind)
    return from_text([_only_text(value) for value in values], kind)


def in_json(value: Any) -> str | None:
    """Return a text as it is, and other values as JSON."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def guess_text(values: Sequence[str]) -> str:
    if not values:
        return "string"
    if all(map(WHOLE.fullmatch, values)):
        return _first_that_holds(values, "bigint", WIDEST)
    return _first_that_holds(values, "bigint", "double", "boolean", "date", "timestamp")


def guess_json(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int}:
        return _first_that_holds(list(map(str, values)), "bigint", WIDEST)
    return "double" if kinds and kinds <= {int, msgspec.Raw} else "string"


def _first_that_holds(values: Sequence[str], *kinds: str) -> str:
    for kind in kinds:
        try:
            from_text(values, kind)
        except REFUSALS:
            continue
        return kind
    return "string"


def _zoned(value: str | None) -> str | None:
    """A time without a zone is UTC."""
    return value if value is None or ZONED.fullmatch(value) else f"{value}Z"


def _refuse_any(mask: Any) -> None:
    if pc.any(mask).as_py():
        raise ValueError


def _unhexed(texts: Any) -> Any:
    """0xff is 255, for any number of bits."""
    if not pc.any(pc.match_substring_regex(texts, "^0[xX]")).as_py():
        return texts
    plain = [str(int(text, 16)) if text and HEX.fullmatch(text) else text for text in texts.to_pylist()]
    return pa.array(plain, pa.string())


def _nearest(texts: Any, to: pa.DataType) -> Any:
    """Return the nearest number of the type. Infinity must be written as such."""
    converted = texts.cast(to)
    _refuse_any(pc.and_(pc.is_inf(converted), pc.invert(pc.match_substring(texts, "inf", ignore_case=True))))
    return converted


def _decimals(texts: Any, to: pa.DataType) -> Any:
    odd = pc.or_(pc.greater(pc.utf8_length(texts), PLAIN_CHARS), pc.match_substring(texts, "e", ignore_case=True))
    if pc.any(odd).as_py():
        pairs = zip(texts.to_pylist(), odd.to_pylist(), strict=True)
        plain = [_plain(text, to.precision, to.scale) if is_odd else text for text, is_odd in pairs]
        texts = pa.array(plain, pa.string())
    return texts.cast(pa.decimal256(2 * PLAIN_CHARS, to.scale)).cast(to)  # otherwise 11 as decimal(38,38) overflows


def _plain(text: str, precision: int, scale: int) -> str:
    """Return the same number without an exponent and without needless digits. Written out it may have a billion."""
    if NUMBER.fullmatch(text) is None:
        raise ValueError
    number = Decimal(text)
    written = "".join(map(str, number.as_tuple().digits))
    digits = written.rstrip("0")
    exponent = int(number.as_tuple().exponent) + len(written) - len(digits)
    if not digits:
        return "0"
    if -exponent > scale or len(digits) + exponent > precision - scale:
        raise ValueError
    sign = "-" if number.is_signed() else ""
    return f"{sign}{Decimal(f'{digits}E{exponent}'):f}"


def _digits(value: Any) -> str | None:
    """Return the text of a number."""
    if value is None or type(value) in (int, msgspec.Raw):
        return in_json(value)
    raise TypeError


def _only_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError


def _texts(values: Sequence[Any]) -> list[str | None]:
    return [in_json(value) for value in values]


def _doubles(values: Sequence[Any]) -> Sequence[float | None]:
    if {type(value) for value in values} <= {float, NoneType}:
        return values
    return [_double(value) for value in values]


def _double(value: Any) -> float | None:
    if value is None or type(value) is float:
        return value
    converted = float(_digits(value) or "")
    if not isfinite(converted):
        raise ValueError
    return converted


def _whole(values: Sequence[Any], to: pa.DataType) -> Any:
    try:
        return pa.array(values, to)
    except REFUSALS:  # possibly 3.0, which is an integer
        return pa.array([_unpointed(value) if type(value) is msgspec.Raw else value for value in values], to)


def _unpointed(number: msgspec.Raw) -> int:
    return int(_plain(bytes(number).decode(), WHOLE_DIGITS, 0))
