"""Two small tables of ordinary and of extreme values, on which engines are compared."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

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
     b"\x00", date(1, 1, 1), datetime(1, 1, 1, tzinfo=UTC), False, [None]),
    (2, 1, 0, 0, -0.0, Decimal("0.0001"), Decimal(0), "%_\\'\"", "1e400", b"", date(1970, 1, 1),
     datetime(1970, 1, 1, tzinfo=UTC), None, []),
    (3, 1, None, None, None, None, None, None, None, None, None, None, None, None),
    (4, 2, -1, -1, 5e-324, Decimal("-1.0000"), Decimal(2**63), "\t\n x", "NaN", b"\xc3\x28", date(1582, 10, 15),
     datetime(1582, 10, 15, tzinfo=UTC), True, [0, -1, 0]),
    (5, 2, 1, 1, float("inf"), Decimal("1.0000"), Decimal(-1), "e\u0301", "2024-02-30", b"\xff" * 3, date(2024, 3, 31),
     datetime(2024, 3, 31, 1, 59, 59, tzinfo=UTC), False, [1]),
]  # fmt: skip
TABLES: Final = {"plain": PLAIN, "extreme": EXTREME, "nothing": []}


def write_tables(folder: Path) -> dict[str, Path]:
    """Write each as a Parquet file."""
    schema = pa.schema([(name, type_) for name, (_, type_) in COLUMNS.items()])
    paths = {}
    for name, rows in TABLES.items():
        columns = [list(values) for values in zip(*rows, strict=True)] or [[] for _ in schema]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
        paths[name] = folder / f"{name}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), paths[name])
    return paths
