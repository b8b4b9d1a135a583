"""Compares a column with a number exactly: the number is converted to the column's type, never the column.

Spark chooses a type that holds both. For decimals there may be none: then it rounds, or the query fails. An integer
beyond 64 bits does not even reach it as an integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Any, assert_never

from tracelake.domain.filter.tree import Op
from tracelake.errors import WorkFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

Number = int | float | Decimal

_BYTES = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}


@dataclass(frozen=True, slots=True)
class _Steps:
    """The values of a column with an exact type, counted in its smallest step."""

    kind: DataType
    scale: int
    least: int
    most: int

    def around(self, number: Number) -> tuple[int, int]:
        """Return the steps below and above a number; twice the same if it is a step. They may be out of range."""
        written = Decimal(repr(number)) if isinstance(number, float) else number
        exact = Fraction(written) * 10**self.scale
        return floor(exact), ceil(exact)

    def has(self, step: int) -> bool:
        return self.least <= step <= self.most

    def literal(self, step: int) -> Column:
        from pyspark.sql import functions as f
        from pyspark.sql.types import DecimalType

        if not isinstance(self.kind, DecimalType):
            return f.lit(step)
        # Not by arithmetic: that would round to the precision of the thread's decimal context.
        value = Decimal((int(step < 0), tuple(map(int, str(abs(step)))), -self.scale))
        return f.lit(format(value, "f")).cast(self.kind)


def compared(left: Column, op: Op, right: Column) -> Column:
    match op:
        case Op.EQ:
            return left == right
        case Op.NE:
            return left != right
        case Op.LT:
            return left < right
        case Op.LE:
            return left <= right
        case Op.GT:
            return left > right
        case Op.GE:
            return left >= right
        case _:
            assert_never(op)


def compared_with(frame: DataFrame, name: str, op: Op, number: Number) -> Column:
    column, kind = frame[name], _type_of(frame, name)
    steps = _steps_of(kind)
    if steps is None:
        return compared(column, op, _loose(name, kind, number))
    below, above = steps.around(number)
    if below == above and steps.has(below):
        return compared(column, op, steps.literal(below))
    # No value of the column equals this number: it is between two values, or out of range.
    match op:
        case Op.EQ | Op.NE:
            return _always(column, op is Op.NE)
        case Op.LT | Op.LE:
            return column <= steps.literal(below) if steps.has(below) else _always(column, below > steps.most)
        case Op.GT | Op.GE:
            return column >= steps.literal(above) if steps.has(above) else _always(column, above < steps.least)
        case _:
            assert_never(op)


def equals_one_of(frame: DataFrame, name: str, numbers: Iterable[Number]) -> Column:
    column, kind = frame[name], _type_of(frame, name)
    steps = _steps_of(kind)
    if steps is None:
        return column.isin([_loose(name, kind, number) for number in numbers])
    around = [steps.around(number) for number in numbers]
    literals = [steps.literal(below) for below, above in around if below == above and steps.has(below)]
    return column.isin(literals) if literals else _always(column, truth=False)


def _always(column: Column, truth: bool) -> Column:
    """The same result for every value, but NULL for NULL."""
    from pyspark.sql import functions as f

    return f.when(column.isNotNull(), f.lit(truth))


def _type_of(frame: DataFrame, name: str) -> DataType | None:
    """None: there is no such column, and Spark has the better error."""
    alike = {field.name: field.dataType for field in frame.schema.fields if field.name.lower() == name.lower()}
    return alike.get(name, next(iter(alike.values()), None))


def _steps_of(kind: Any) -> _Steps | None:
    """None: the type has no exact numbers."""
    from pyspark.sql.types import DecimalType, IntegralType

    if isinstance(kind, DecimalType):
        most = 10**kind.precision - 1
        return _Steps(kind, kind.scale, -most, most)
    if isinstance(kind, IntegralType):
        half = 2 ** (8 * _BYTES[kind.simpleString()] - 1)
        return _Steps(kind, 0, -half, half - 1)
    return None


def _loose(name: str, kind: Any, number: Number) -> Column:
    """Compare doubles as doubles; other types as Spark does in any query."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType, StringType

    if isinstance(number, float) or (isinstance(number, int) and -(2**63) <= number < 2**63):
        return f.lit(number)
    if isinstance(number, int) and isinstance(kind, StringType):
        raise WorkFailed(
            f"column {name!r} is {kind.simpleString()}, and cannot be compared exactly with the number {number}",
            hint="compare it with text in single quotes, or cast it in a SQL job",
        )
    text = format(Decimal(number), "f")
    digits, scale = len(text.strip("-").replace(".", "").lstrip("0")), len(text.partition(".")[2])
    return f.lit(text).cast(DecimalType(max(digits, scale, 1), scale))
