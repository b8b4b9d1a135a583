"""Tables of ordinary and of extreme values, on which engines are compared: each in several files and row groups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

COLUMNS: Final = {
    "id": ("bigint", pa.int64()),
    "g": ("int", pa.int32()),
    "i": ("int", pa.int32()),
    "l": ("bigint", pa.int64()),
    "d": ("double", pa.float64()),
    "dec": ("decimal(20,4)", pa.decimal128(20, 4)),
    "big": ("decimal(38,0)", pa.decimal128(38, 0)),
    "t": ("string", pa.string()),
    "u": ("string", pa.string()),
    "b": ("binary", pa.binary()),
    "dt": ("date", pa.date32()),
    "ts": ("timestamp", pa.timestamp("us", "UTC")),
    "ok": ("boolean", pa.bool_()),
    "a": ("array<int>", pa.list_(pa.int32())),
    "s": ("smallint", pa.int16()),
    "small": ("decimal(9,2)", pa.decimal128(9, 2)),
    "y": ("tinyint", pa.int8()),
    "fine": ("decimal(38,18)", pa.decimal128(38, 18)),
    "f": ("float", pa.float32()),
    "st": ("struct<x:int,y:string>", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    "m": ("map<string,bigint>", pa.map_(pa.string(), pa.int64())),
    "ss": (
        "array<struct<k:string,v:decimal(38,18)>>",
        pa.list_(pa.struct([("k", pa.string()), ("v", pa.decimal128(38, 18))])),
    ),
    "ntz": ("timestamp_ntz", pa.timestamp("us")),
}
DDL: Final = ", ".join(f"`{name}` {sql}" for name, (sql, _) in COLUMNS.items())
BIGGEST: Final = Decimal("9" * 38)
LOWEST: Final = Decimal("-" + "9" * 38)

PLAIN: Final[list[tuple[Any, ...]]] = [
    (0, 0, 7, 70, 1.5, Decimal("12.3400"), Decimal(10**18), "apple", "0x01", b"\x01\x02", date(2024, 2, 29),
     datetime(2024, 2, 29, 23, 59, 59, 999999, UTC), True, [1, 2, 3]),
    (1, 0, 3, -5, -2.5, Decimal("-0.5000"), Decimal(-7), "Banana split", "0xff", b"", date(1999, 12, 31),
     datetime(1999, 12, 31, 12, 30, tzinfo=UTC), False, [3, 3]),
    (2, 1, 7, 70, 0.0, Decimal("0.0000"), Decimal(0), "a,b,c", "17", b"\xff", date(2024, 1, 1),
     datetime(2024, 1, 1, tzinfo=UTC), None, []),
    (3, 1, 1, 2, 3.25, Decimal("99.9999"), Decimal(123), "  padded  ", "2024-03-10", b"abc", date(2020, 7, 15),
     datetime(2020, 7, 15, 1, 2, 3, 4, UTC), True, [5]),
]  # fmt: skip
EXTREME: Final[list[tuple[Any, ...]]] = [
    (0, 0, 2**31 - 1, 2**63 - 1, float("nan"), Decimal("9999999999999999.9999"), BIGGEST, "", str(2**256 - 1),
     (2**256 - 1).to_bytes(32, "big"), date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), True,
     [2**31 - 1, None]),
    (1, 0, -(2**31), -(2**63), float("-inf"), Decimal("-9999999999999999.9999"), LOWEST, "Straße İ ﬁ 😀 é", "-",
     b"\x00", date(1, 1, 1), datetime(1, 1, 1, 0, 0, 0, 1, UTC), False, [None]),
    (2, 1, 0, 0, -0.0, Decimal("0.0001"), Decimal(0), "%_\\'\"", "1e400", b"", date(1970, 1, 1),
     datetime(1970, 1, 1, tzinfo=UTC), None, []),
    (3, 1, None, None, None, None, None, None, None, None, None, None, None, None),
    (4, 2, -1, -1, 5e-324, Decimal("-1.0000"), Decimal(2**63), "\t\n x", "NaN", b"\xc3\x28", date(1582, 10, 15),
     datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), True, [0, -1, 0]),
    (5, 2, 1, 1, float("inf"), Decimal("1.0000"), Decimal(-1), "e\u0301", "2024-02-30", b"\xff" * 99, date(2024, 3, 31),
     datetime(2024, 3, 31, 1, 59, 59, tzinfo=UTC), False, [1]),
]  # fmt: skip
SHORTS: Final = ((0, "0.00"), (1, "-1.25"), (-32768, "9999999.99"), (32767, "-9999999.99"), (None, None), (12, "0.01"))
"""Two more columns of both."""
FINE: Final = ("0." + "0" * 17 + "1", "1.5", "9" * 20 + "." + "9" * 18, "-" + "9" * 20 + "." + "9" * 18, "0")
MANY: Final = 60
FILES: Final = 3
ROW_GROUP: Final = 7


def _ordinary() -> Iterator[tuple[Any, ...]]:
    """Rows of numbers of all sizes, none so large that a sum of two exceeds its type."""
    made = random.Random(7)  # noqa: S311 - the same each time
    for at in range(MANY):
        drawn = [made.randrange(-(10 ** made.randrange(1, 9)), 10 ** made.randrange(1, 9)) for _ in range(6)]
        moment = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=drawn[0] * 7, microseconds=drawn[1] % 10**6)
        row = (
            *(at, at % 5, drawn[2], drawn[3] * 1000, drawn[4] / 997, Decimal(drawn[5]).scaleb(-4)),
            *(Decimal(drawn[1]) * 10 ** made.randrange(12), f"0x{abs(drawn[0]):x}", str(drawn[1])),
            *(str(drawn[2]).encode(), moment.date(), moment, at % 3 == 0, [at]),
            *(drawn[3] % 1000, Decimal(drawn[4] % 10**6).scaleb(-2)),
        )
        row = (*row, *_nested(at))
        yield tuple(None if made.random() < 0.08 and place > 1 else value for place, value in enumerate(row))


def _nested(at: int) -> tuple[Any, ...]:
    """The last columns: a byte, 18 digits behind the point, a float, a struct, a map, structs, a time of no zone."""
    fine, word = Decimal(FINE[at % len(FINE)]), (None, "", "é", "x" * 40)[at % 4]
    return (
        (at * 37) % 256 - 128,
        fine,
        (0.1, float("nan"), -0.0, 3.4e38, float("-inf"))[at % 5],
        {"x": None if at % 3 == 0 else at, "y": word},
        [("k", at), ("é", None)][: at % 3],
        [{"k": word, "v": fine}, None, {"k": None, "v": None}][: at % 4],
        datetime(1900 + at % 200, 3, 31, 1, 59, 59, at),  # noqa: DTZ001 - it has none
    )


def _with_shorts(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    paired = enumerate(zip(rows, SHORTS, strict=False))
    return [(*row, short, text and Decimal(text), *_nested(at)) for at, (row, (short, text)) in paired]


TABLES: Final = {
    "plain": _with_shorts(PLAIN),
    "extreme": _with_shorts(EXTREME),
    "nothing": [],
    "many": list(_ordinary()),
}


def arrow_tables() -> dict[str, pa.Table]:
    schema = pa.schema([(name, type_) for name, (_, type_) in COLUMNS.items()])
    tables = {}
    for name, rows in TABLES.items():
        columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in schema]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        tables[name] = pa.Table.from_arrays(arrays, schema=schema)
    return tables
