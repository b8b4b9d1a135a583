"""The report of `quality` as rows of its dataset: one for each check and partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelake.domain.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CheckResult:
    check: str
    level: str
    passed: bool
    failing_rows: int
    explanation: str


def report(verdicts: Sequence[CheckResult], part: Range | str) -> pa.Table:
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
