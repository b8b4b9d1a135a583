"""Builds SQL for the Postgres source from quoted names, typed literals and Spark's filters.

User text occurs only inside quoted literals. A filter that Postgres would not evaluate exactly like Spark is left to
Spark.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql import types as st

from tracelake.errors import BadInput

MOST_VALUES: Final = 10_000
"""In one IN; longer lists are left to Spark."""
MANY_RANGES: Final = 8

KINDS: Final[Mapping[type[st.DataType], tuple[str, pa.DataType]]] = {
    st.BooleanType: ("boolean", pa.bool_()),
    st.ByteType: ("smallint", pa.int8()),
    st.ShortType: ("smallint", pa.int16()),
    st.IntegerType: ("integer", pa.int32()),
    st.LongType: ("bigint", pa.int64()),
    st.FloatType: ("real", pa.float32()),
    st.DoubleType: ("double precision", pa.float64()),
    st.StringType: ("text", pa.string()),
    st.BinaryType: ("bytea", pa.binary()),
    st.DateType: ("date", pa.date32()),
    st.TimestampType: ("timestamptz", pa.timestamp("us", "UTC")),
    st.TimestampNTZType: ("timestamp", pa.timestamp("us")),
}
BITS: Final = {"smallint": 16, "integer": 32, "bigint": 64}
VALUES: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "text": (str,),
    "bytea": (bytes, bytearray),
    "numeric": (Decimal, int),
    "date": (dt.date,),
    "timestamptz": (dt.datetime,),
    "timestamp": (dt.datetime,),
    "real": (float, int),
    "double precision": (float, int),
}


@dataclass(frozen=True)
class RequestedColumn:
    """A requested column: the Postgres type for comparisons, and the Arrow type of its values."""

    name: str
    postgres: str
    arrow: pa.DataType

    @property
    def value(self) -> str:
        """Cast to its type, which is a no-op for a column of that type; numeric(78,0) and jsonb become text."""
        return f"{quoted(self.name)}::{self.postgres}"

    @property
    def selected(self) -> str:
        """Decimals are transferred as text: ADBC has no decimal type."""
        cast = "::text" if pa.types.is_decimal(self.arrow) else ""
        return f"{self.value}{cast} AS {quoted(self.name)}"


def columns_of(schema: st.StructType) -> dict[str, RequestedColumn]:
    return {field.name: _column(field) for field in schema.fields}


def quoted(name: str) -> str:
    if "\0" in name or not name:
        raise BadInput("a name in Postgres is not empty and has no zero byte", where=repr(name))
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any, postgres: str) -> str | None:
    """Return the value as a constant of this type, or None if there is none."""
    if not isinstance(value, VALUES[postgres.partition("(")[0]]) or (isinstance(value, bool) and postgres != "boolean"):
        return None
    text = _text(value)
    if text is None or "\0" in text or not _fits(value, postgres):
        return None
    return "'" + text.replace("'", "''") + f"'::{postgres}"


def condition(pushed: ds.Filter, columns: Mapping[str, RequestedColumn]) -> str | None:
    """Return the filter as SQL, or None if Spark must apply it."""
    if isinstance(pushed, ds.Not):
        inner = condition(pushed.child, columns)
        return None if inner is None else f"NOT ({inner})"
    attribute: Sequence[str] = getattr(pushed, "attribute", ())
    column = columns.get(attribute[0]) if len(attribute) == 1 else None
    if column is None:
        return None
    if isinstance(pushed, ds.IsNull):
        return f"{column.value} IS NULL"
    if isinstance(pushed, ds.IsNotNull):
        return f"{column.value} IS NOT NULL"
    if isinstance(pushed, ds.In):
        return _one_of(column, pushed.value)
    return _compared(pushed, column)


def ranges(column: str, pieces: Sequence[Sequence[int | None]]) -> str:
    """Numbers in any of these half-open ranges; an unbounded start includes NULL, so that every row is in one."""
    name = quoted(column)
    if len(pieces) > MANY_RANGES:
        spans = ",".join(f"[{int(start or 0)},{int(stop or 0)})" for start, stop in pieces)
        low, high = int(pieces[0][0] or 0), int(pieces[-1][1] or 0)
        return f"({name} >= {low} AND {name} < {high} AND {name} <@ '{{{spans}}}'::int8multirange)"
    return "(" + " OR ".join(_range(name, start, stop) for start, stop in pieces) + ")"


def _column(field: st.StructField) -> RequestedColumn:
    kind = field.dataType
    if isinstance(kind, st.DecimalType):
        postgres = f"numeric({kind.precision},{kind.scale})"
        return RequestedColumn(field.name, postgres, pa.decimal128(kind.precision, kind.scale))
    types = KINDS.get(type(kind))
    if types is None:
        raise BadInput(
            f"column {field.name} cannot be read from Postgres as {kind.simpleString()}",
            where=field.name,
            hint="read jsonb, arrays and wide numerics as string",
        )
    return RequestedColumn(field.name, *types)


def _fits(value: Any, postgres: str) -> bool:
    """Whether the cast to this type keeps the number: Postgres would round it, or refuse the statement."""
    kind, _, inside = postgres.partition("(")
    if kind in BITS:
        half = 2 ** (BITS[kind] - 1)
        return int(value) in range(-half, half)
    if kind != "numeric":
        return True
    precision, scale = map(int, inside.rstrip(")").split(","))
    steps: Fraction = Fraction(value) * 10**scale
    return steps.denominator == 1 and abs(steps.numerator) < int(10**precision)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else None
    if isinstance(value, (bytes, bytearray)):
        return "\\x" + value.hex()
    if isinstance(value, dt.date):
        return value.isoformat()  # a datetime has a date too
    return str(value)


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _one_of(column: RequestedColumn, values: Sequence[Any]) -> str | None:
    known = [value for value in values if value is not None]
    constants = [literal(value, column.postgres) for value in known]
    if None in constants or not 0 < len(values) <= MOST_VALUES:
        return None
    nothing = ["NULL"] if len(known) < len(values) else []
    return f"{column.value} IN ({', '.join([str(constant) for constant in constants] + nothing)})"


def _compared(pushed: ds.Filter, column: RequestedColumn) -> str | None:
    constant = literal(getattr(pushed, "value", None), column.postgres)
    if constant is None:
        return None
    # Spark compares text by bytes, as collation C does, whatever the database uses.
    ordered = f'{column.value} COLLATE "C"' if column.postgres == "text" else column.value
    return {
        ds.EqualTo: f"{column.value} = {constant}",
        ds.EqualNullSafe: f"{column.value} IS NOT DISTINCT FROM {constant}",
        ds.GreaterThan: f"{ordered} > {constant}",
        ds.GreaterThanOrEqual: f"{ordered} >= {constant}",
        ds.LessThan: f"{ordered} < {constant}",
        ds.LessThanOrEqual: f"{ordered} <= {constant}",
        ds.StringStartsWith: f"starts_with({column.value}, {constant})",
        ds.StringContains: f"strpos({column.value}, {constant}) > 0",
    }.get(type(pushed))


def _range(name: str, start: int | None, stop: int | None) -> str:
    above = "" if start is None else f"{name} >= {int(start)}"
    below = "" if stop is None else f"{name} < {int(stop)}"
    both = " AND ".join(part for part in (above, below) if part) or "true"
    return f"({both})" if start is not None else f"({both} OR {name} IS NULL)"
