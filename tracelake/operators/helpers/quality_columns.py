"""What the checks of `quality` compute on a DataFrame, and how rows that fail are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tracelake.domain.filter.tree import Op
from tracelake.errors import WorkFailed
from tracelake.operators.helpers.quality_checks import Check, Continuous, InRange, NotNull, Unique, about

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SAMPLES: Final = 5


def aggregates(frame: DataFrame, check: Any, numbered: set[str]) -> dict[str, Column]:
    from pyspark.sql import functions as f

    if isinstance(check, NotNull | InRange):
        return {"bad": f.count_if(fails(frame, check))}
    if isinstance(check, Continuous):
        column = _whole_numbers(frame, check)
        return {"least": f.min(column), "most": f.max(column), "different": f.count_distinct(column)}
    if isinstance(check, Unique) and len(check.columns) == 1 and check.columns[0] in numbered:
        column = frame[check.columns[0]]
        return {"different": f.count_distinct(column), "nulls": f.count_if(column.isNull())}
    return {}


def _whole_numbers(frame: DataFrame, check: Continuous) -> Column:
    from pyspark.sql.types import DecimalType, IntegralType, NullType

    column, kind = frame[check.column], frame.select(check.column).schema[0].dataType
    if isinstance(kind, IntegralType | NullType) or (isinstance(kind, DecimalType) and kind.scale == 0):
        return column
    raise WorkFailed(
        f"{called(check)}: the column is {kind.simpleString()}, and only whole numbers can be continuous",
        where="/config/checks",
    )


def fails(frame: DataFrame, check: Any) -> Column:
    """Return the condition for rows that fail; NULL is never out of range: `not_null` checks for it."""
    from pyspark.sql import functions as f

    from tracelake.data.compare_number import compared_with

    if isinstance(check, NotNull):
        found = [frame[name].isNull() for name in check.columns]
    else:
        limits = [(Op.LT, check.min), (Op.GT, check.max)]
        found = [compared_with(frame, check.column, op, limit) for op, limit in limits if limit is not None]
    bad = found[0]
    for item in found[1:]:
        bad = bad | item
    return f.coalesce(bad, f.lit(False))  # noqa: FBT003 - a literal


def everything() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy()


def in_order(column: str) -> Any:
    from pyspark.sql import Window

    return Window.orderBy(column)


def sample_rows(frame: DataFrame) -> str:
    return ", ".join(row_text(row.asDict()) for row in frame.limit(SAMPLES).collect())


def row_text(row: Mapping[str, Any]) -> str:
    def value(item: Any) -> str:
        return f"0x{item.hex()}" if isinstance(item, bytes | bytearray) else str(item)

    return "(" + ", ".join(f"{name}={value(item)[:80]}" for name, item in list(row.items())[:8]) + ")"


def called(check: Check) -> str:
    """The name of a check in the report."""
    return check.name or f"{check.kind} {about(check)}".strip()
