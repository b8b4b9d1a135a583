"""The checks of `quality` as a DAG writes them, and the report of their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tracelake.domain.filter.tree import MAX_DIGITS
from tracelake.domain.ranges import Range
from tracelake.operators.api.outcome import OperatorConfig

if TYPE_CHECKING:
    import pyarrow as pa

MOST_ROWS: Final = 2**63 - 1
"""In the report they are 64-bit numbers."""


def _usable(number: float) -> float:
    if isinstance(number, int) and abs(number) >= 10**MAX_DIGITS:
        raise ValueError(f"a number has at most {MAX_DIGITS} digits, and this has {len(str(abs(number)))}")
    if not math.isfinite(number):
        raise ValueError("nothing can be compared with a number that is not finite: leave this end out")
    return number


Names = Annotated[list[str], Field(min_length=1)]
Number = Annotated[int | float, AfterValidator(_usable)]


class Check(OperatorConfig):
    kind: str
    input: str | None = None
    level: Literal["fail", "warn"] = "fail"
    name: str | None = None


class NotNull(Check):
    kind: Literal["not_null"]
    columns: Names


class Unique(Check):
    kind: Literal["unique"]
    columns: Names


class InRange(Check):
    kind: Literal["range"]
    column: str
    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _has_ends(self) -> InRange:
        _refuse_odd_ends("a range", self.min, self.max)
        return self


class Continuous(Check):
    kind: Literal["continuous"]
    column: str = "block_number"


class RowCount(Check):
    kind: Literal["row_count"]
    min: int | None = Field(default=None, ge=0, le=MOST_ROWS)
    max: int | None = Field(default=None, ge=0, le=MOST_ROWS)

    @model_validator(mode="after")
    def _has_ends(self) -> RowCount:
        _refuse_odd_ends("row_count", self.min, self.max)
        return self


class CompareRows(Check):
    kind: Literal["compare_rows"]
    other: str
    tolerance: int = Field(default=0, ge=0, le=MOST_ROWS)


class Sql(Check):
    kind: Literal["sql"]
    query: str = Field(min_length=1)


AnyCheck = Annotated[
    NotNull | Unique | InRange | Continuous | RowCount | CompareRows | Sql, Field(discriminator="kind")
]


def about(check: Check) -> str:
    """Return what it checks, as part of its name."""
    match check:
        case NotNull(columns=columns) | Unique(columns=columns):
            return ", ".join(columns)
        case InRange(column=column) | Continuous(column=column):
            return column
        case CompareRows(other=other):
            return other
        case _:
            return ""


def ends(check: Any) -> str:
    if check.min is not None and check.max is not None:
        return f"{check.min} to {check.max}"
    return f"{check.min} or more" if check.min is not None else f"at most {check.max}"


@dataclass(frozen=True)
class CheckResult:
    check: str
    level: str
    passed: bool
    failing_rows: int
    explanation: str


def report(verdicts: Sequence[CheckResult], part: Range | str) -> pa.Table:
    """Return the rows of the dataset: one for each check and partition."""
    import pyarrow as pa

    start, end = part.edges if isinstance(part, Range) else (None, None)
    columns: dict[str, Any] = {
        "partition": pa.array([str(part) if isinstance(part, str) else f"{start}-{end}"] * len(verdicts), pa.string()),
        "start": pa.array([start] * len(verdicts), pa.int64()),
        "end": pa.array([end] * len(verdicts), pa.int64()),
        "check": pa.array([verdict.check for verdict in verdicts], pa.string()),
        "level": pa.array([verdict.level for verdict in verdicts], pa.string()),
        "passed": pa.array([verdict.passed for verdict in verdicts], pa.bool_()),
        "failing_rows": pa.array([verdict.failing_rows for verdict in verdicts], pa.int64()),
        "explanation": pa.array([verdict.explanation for verdict in verdicts], pa.string()),
    }
    return pa.table(columns)


def _refuse_odd_ends(what: str, least: Number | None, most: Number | None) -> None:
    if least is None and most is None:
        raise ValueError(f"{what} needs `min`, `max` or both")
    if least is not None and most is not None and least > most:
        raise ValueError(f"nothing is {least} or more and {most} or less: `min` is greater than `max`")
