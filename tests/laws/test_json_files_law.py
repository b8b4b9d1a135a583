"""What is read from a JSON file equals what was written, or the line is refused by its number: any value as any type.

What a value means is worked out here from its text alone: a number is a fraction, and a double the nearest one.
"""

from __future__ import annotations

import json
import math
import re
import struct
import tempfile
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tracelake.data.files.shape import Shape, arrow_type
from tracelake.data.files.text_files import infer_columns, read_table
from tracelake.errors import WorkFailed

BITS = {"bigint": 64, "int": 32, "smallint": 16, "tinyint": 8}
DECIMALS = ("decimal(38,0)", "decimal(38,38)", "decimal(38,2)", "decimal(5,2)", "decimal(1,0)", "decimal(20,10)")
KINDS = (*BITS, *DECIMALS, "double", "float", "boolean", "string")
NO = object()
"""Refused."""

digits = st.text("0123456789", min_size=1, max_size=45) | st.sampled_from(
    ["0" * 45, "9" * 38, "5", "50", "1" + "0" * 60]
)
edges = st.sampled_from([2**bits + off for bits in (7, 15, 24, 31, 53, 63, 64, 128) for off in (-1, 0, 1)]).map(str)
exponents = st.integers(-400, 400) | st.integers(-3, 3) | st.integers(-40, 40)


@st.composite
def numbers(draw: st.DrawFn) -> str:
    whole = (draw(digits | edges)).lstrip("0") or "0"
    point = draw(st.just("") | digits.map(".{}".format) | st.just(".0"))
    power = draw(st.just("") | st.builds("{}{}".format, st.sampled_from("eE"), exponents))
    return f"{draw(st.sampled_from(['', '-']))}{whole}{point}{power}"


texts = st.text(max_size=5) | numbers() | st.sampled_from(["true", "NaN", "inf", "Infinity", "0x1", ""])
plain = numbers() | st.sampled_from(["true", "false", "null"]) | texts.map(json.dumps)
values = plain | st.lists(numbers(), max_size=3).map(lambda inner: f"[{', '.join(inner)}]")


def exact(text: str) -> Fraction:
    return Fraction(Decimal(text))


def expected(text: str, kind: str) -> Any:
    """What a JSON text is as a type; NO if it is none."""
    value = json.loads(text, parse_float=exact, parse_int=exact)
    if value is None or kind == "string":
        return value
    if kind == "boolean":
        return value if isinstance(value, bool) else NO
    if kind in DECIMALS and isinstance(value, str):
        return _decimal(exact(value), kind) if re.fullmatch(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", value, re.ASCII) else NO
    if not isinstance(value, Fraction):
        return NO
    if kind in BITS:
        most = 2 ** (BITS[kind] - 1)
        return value if value.denominator == 1 and -most <= value < most else NO
    return _decimal(value, kind) if kind in DECIMALS else value


def _decimal(value: Fraction, kind: str) -> Any:
    to = arrow_type(kind)
    scaled = value * 10**to.scale
    return value if scaled.denominator == 1 and abs(scaled) < 10**to.precision else NO


def is_nearest(found: float, value: Fraction, kind: str) -> bool:
    return math.isfinite(found) and all(
        abs(Fraction(found) - value) <= abs(Fraction(other) - value) for other in neighbours(found, kind)
    )


def neighbours(found: float, kind: str) -> list[float]:
    if kind == "double":
        beside = [math.nextafter(found, toward) for toward in (-math.inf, math.inf)]
    else:
        (bits,) = struct.unpack("<i", struct.pack("<f", abs(found)))
        beside = [struct.unpack("<f", struct.pack("<i", max(bits + step, 0)))[0] for step in (-1, 1)]
        beside = [math.copysign(pool, found) for pool in beside]
    return [pool for pool in beside if math.isfinite(pool)]


MOST = {"double": Fraction(2) ** 1024 - Fraction(2) ** 970, "float": Fraction(2) ** 128 - Fraction(2) ** 103}
"""From here on infinity is the nearest."""


def check(found: Any, text: str, kind: str) -> None:
    wanted = expected(text, kind)
    if kind in MOST and wanted is not None:
        assert is_nearest(found, wanted, kind), (found, text)
    elif kind == "string" and wanted is not None and not isinstance(wanted, str):
        assert json.loads(found, parse_float=exact, parse_int=exact) == wanted
    else:
        assert (found if found is None or isinstance(found, str | bool) else Fraction(found)) == wanted


def fits(text: str, kind: str) -> bool:
    wanted = expected(text, kind)
    return wanted is not NO and not (kind in MOST and wanted is not None and abs(wanted) >= MOST[kind])


def stored(folder: str, column: list[str], *, is_list: bool) -> Path:
    path = Path(folder) / "a.json"
    rows = [f'{{"v": {text}, "x": 0.5}}' for text in column]
    path.write_text(f"[{','.join(rows)}]" if is_list else "".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


@settings(max_examples=600, deadline=None)
@given(st.lists(values, min_size=1, max_size=5), st.sampled_from(KINDS), st.booleans())
def test_a_value_is_read_as_it_was_written_and_refused_only_if_its_type_does_not_hold_it(
    column: list[str], kind: str, is_list: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = stored(folder, column, is_list=is_list)
        table, left_out = read_table(path, "in/a.json", Shape("json", {"v": kind}, bad_lines=len(column)))
        readable = [text for text in column if fits(text, kind)]
        assert left_out == len(column) - len(readable)
        assert table.schema.types == [arrow_type(kind)]
        for found, text in zip(table["v"].to_pylist(), readable, strict=True):
            check(found, text, kind)
        if left_out:
            try:
                read_table(path, "in/a.json", Shape("json", {"v": kind}))
            except WorkFailed as refused:
                first = next(number for number, text in enumerate(column, start=1) if not fits(text, kind))
                assert refused.message.startswith(f"in/a.json: line {first}: v is ")  # noqa: PT017
            else:
                raise AssertionError(column)


@settings(max_examples=250, deadline=None)
@given(st.lists(values, min_size=1, max_size=5))
def test_a_guessed_type_holds_every_value_that_it_was_guessed_from_but_numbers_beyond_double(column: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = stored(folder, column, is_list=False)
        kind = infer_columns(path, "in/a.json", Shape("json", {}))["v"]
        table, left_out = read_table(path, "in/a.json", Shape("json", {"v": kind}, bad_lines=len(column)))
    readable = [text for text in column if fits(text, kind)]
    assert left_out == len(column) - len(readable)
    assert not left_out or kind == "double"
    for found, text in zip(table["v"].to_pylist(), readable, strict=True):
        check(found, text, kind)
