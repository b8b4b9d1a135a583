"""The types of buffered datasets, as in JSON lines, in Arrow and in Postgres.

Types that Arrow or ADBC cannot transfer to Postgres (json, wide and decimal numbers) are transferred as text, which
Postgres parses exactly. In JSON, `bytes` are written `"0x..."`, `uint256` as a number or its digits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from tracelake.data.postgres.sql_text import RequestedColumn
from tracelake.domain.buffered import DECIMAL

INT4: Final = 2**31
INT8: Final = 2**63


@dataclass(frozen=True)
class TypeMapping:
    json: Any
    """The type for msgspec's strict decoding."""
    arrow: pa.DataType
    """The type for the transfer."""
    postgres: str

    @property
    def staged_as(self) -> str:
        return "text" if pa.types.is_string(self.arrow) else self.postgres


FORMS: Final = {
    "boolean": TypeMapping(bool, pa.bool_(), "boolean"),
    "integer": TypeMapping(Annotated[int, Meta(ge=-INT4, le=INT4 - 1)], pa.int32(), "integer"),
    "bigint": TypeMapping(Annotated[int, Meta(ge=-INT8, le=INT8 - 1)], pa.int64(), "bigint"),
    "double": TypeMapping(float, pa.float64(), "double precision"),
    "text": TypeMapping(str, pa.string(), "text"),
    "bytes": TypeMapping(Annotated[str, Meta(pattern="^0x(?:[0-9a-fA-F]{2})*$")], pa.binary(), "bytea"),
    "date": TypeMapping(dt.date, pa.date32(), "date"),
    "timestamp": TypeMapping(
        Annotated[dt.datetime, Meta(tz=True)], pa.timestamp("us", "UTC"), "timestamp with time zone"
    ),
    "json": TypeMapping(msgspec.Raw, pa.string(), "jsonb"),
    "uint256": TypeMapping(
        Annotated[str, Meta(pattern="^(?:0|[1-9][0-9]{0,77})$")] | int, pa.string(), "numeric(78,0)"
    ),
}


def form_of(kind: str) -> TypeMapping:
    match = DECIMAL.fullmatch(kind)
    if match is None:
        return FORMS[kind]
    return TypeMapping(Decimal, pa.string(), f"numeric({match[1]},{match[2]})")


def staged_column(name: str, kind: str) -> RequestedColumn:
    form = form_of(kind)
    return RequestedColumn(name, form.staged_as, form.arrow)


def to_arrow(kind: str, values: Sequence[Any]) -> pa.Array:
    """Convert decoded values for the transfer; ValueError for a value that has the type and still cannot be stored."""
    if kind == "bytes":
        return pa.array([None if value is None else bytes.fromhex(value[2:]) for value in values], pa.binary())
    if kind == "json":
        return pa.array([_json_text(value) for value in values], pa.string())
    if kind == "uint256":
        return pa.array([None if value is None else digits(value) for value in values], pa.string())
    if match := DECIMAL.fullmatch(kind):
        precision, scale = int(match[1]), int(match[2])
        return pa.array(
            [None if value is None else decimal_text(value, precision, scale) for value in values], pa.string()
        )
    return pa.array(values, form_of(kind).arrow)


def digits(value: str | int) -> str:
    if not 0 <= int(value) < 2**256:
        raise ValueError("a uint256 is a whole number from 0 to 2^256 - 1")
    return str(value)


def decimal_text(value: Decimal, precision: int, scale: int) -> str:
    """Convert exactly or raise: Postgres would round."""
    if not value.is_finite():
        raise ValueError("a decimal is a number")
    _, written, exponent = value.as_tuple()
    after = max(0, -int(exponent))
    before = max(0, len(written) + int(exponent))
    if value and (after > scale or before > precision - scale):
        raise ValueError(f"{value} does not fit into decimal({precision},{scale})")
    return format(value, "f")


def _json_text(raw: msgspec.Raw | None) -> str | None:
    text = None if raw is None else bytes(raw).decode()
    return None if text in {None, "", "null"} else text
