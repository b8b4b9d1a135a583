"""The types of buffered datasets, each in its forms: in a JSON line, in Arrow, in Postgres.

What Arrow or ADBC cannot carry into Postgres (json, wide and decimal numbers) travels as text, and Postgres reads it
exactly. `bytes` are written `"0x..."` in JSON, `uint256` as a number or its digits.
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

from tracelake.data.postgres.sql_text import Column
from tracelake.domain.buffered import DECIMAL

INT4: Final = 2**31
INT8: Final = 2**63


@dataclass(frozen=True)
class Form:
    json: Any
    """As msgspec reads it, strictly."""
    arrow: pa.DataType
    """As it travels."""
    postgres: str

    @property
    def staged_as(self) -> str:
        return "text" if pa.types.is_string(self.arrow) else self.postgres


FORMS: Final = {
    "boolean": Form(bool, pa.bool_(), "boolean"),
    "integer": Form(Annotated[int, Meta(ge=-INT4, le=INT4 - 1)], pa.int32(), "integer"),
    "bigint": Form(Annotated[int, Meta(ge=-INT8, le=INT8 - 1)], pa.int64(), "bigint"),
    "double": Form(float, pa.float64(), "double precision"),
    "text": Form(str, pa.string(), "text"),
    "bytes": Form(Annotated[str, Meta(pattern="^0x(?:[0-9a-fA-F]{2})*$")], pa.binary(), "bytea"),
    "date": Form(dt.date, pa.date32(), "date"),
    "timestamp": Form(Annotated[dt.datetime, Meta(tz=True)], pa.timestamp("us", "UTC"), "timestamp with time zone"),
    "json": Form(msgspec.Raw, pa.string(), "jsonb"),
    "uint256": Form(Annotated[str, Meta(pattern="^(?:0|[1-9][0-9]{0,77})$")] | int, pa.string(), "numeric(78,0)"),
}


def form_of(kind: str) -> Form:
    found = DECIMAL.fullmatch(kind)
    if found is None:
        return FORMS[kind]
    return Form(Decimal, pa.string(), f"numeric({found[1]},{found[2]})")


def staged_column(name: str, kind: str) -> Column:
    form = form_of(kind)
    return Column(name, form.staged_as, form.arrow)


def to_arrow(kind: str, values: Sequence[Any]) -> pa.Array:
    """What msgspec read, as it travels; ValueError where a value is of the type and still cannot be kept."""
    if kind == "bytes":
        return pa.array([None if value is None else bytes.fromhex(value[2:]) for value in values], pa.binary())
    if kind == "json":
        return pa.array([_json_text(value) for value in values], pa.string())
    if kind == "uint256":
        return pa.array([None if value is None else digits(value) for value in values], pa.string())
    if found := DECIMAL.fullmatch(kind):
        precision, scale = int(found[1]), int(found[2])
        return pa.array(
            [None if value is None else decimal_text(value, precision, scale) for value in values], pa.string()
        )
    return pa.array(values, form_of(kind).arrow)


def digits(value: str | int) -> str:
    if not 0 <= int(value) < 2**256:
        raise ValueError("a uint256 is a whole number from 0 to 2^256 - 1")
    return str(value)


def decimal_text(value: Decimal, precision: int, scale: int) -> str:
    """Exactly, or not at all: Postgres would round."""
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
