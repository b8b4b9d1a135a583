"""`quality`: checks inputs by rows and as a whole. A check of level `fail` fails the task; a warning is reported.

All row checks of an input are one aggregation. SQL needs a pass of its own; so does uniqueness, unless the aggregation
counts the distinct values of that column anyway and finds as many as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tracelake.domain.dag.catalog import ConfigPath, ConfigProblem, OperatorSpec, Wired, checked_by, every_input
from tracelake.domain.dag.model import DagOutput, Storage
from tracelake.domain.ranges import Range, format_partition_key, intersect, subtract
from tracelake.domain.text.suggest import closest
from tracelake.errors import InvalidSql, WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.inputs import WHOLE, InputPartition
from tracelake.operators.api.outcome import OperatorConfig, Outcome, in_full
from tracelake.operators.api.runtimes import ON_SPARK
from tracelake.operators.helpers.quality_checks import (
    MOST_ROWS,
    AnyCheck,
    Check,
    CheckResult,
    CompareRows,
    Continuous,
    InRange,
    NotNull,
    RowCount,
    Sql,
    Unique,
    ends,
    report,
)
from tracelake.operators.helpers.quality_columns import (
    SAMPLES,
    aggregates,
    called,
    everything,
    fails,
    in_order,
    row_text,
    sample_rows,
)
from tracelake.wire.task.markers import NUMBER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Config(OperatorConfig):
    checks: Annotated[list[AnyCheck], Field(min_length=1, max_length=200)]
    mode: Literal["partition", "full"] = "partition"


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    return list(_wiring_problems(Config.model_validate(dict(config)), wired))


def _wiring_problems(config: Config, wired: Wired) -> Iterator[ConfigProblem]:
    for index, check in enumerate(config.checks):
        path = ("checks", index)
        for field, name in (("input", check.input), ("other", getattr(check, "other", None))):
            if name is not None and name not in wired.inputs:
                yield ConfigProblem((*path, field), f"there is no input {name!r}", closest(name, wired.inputs))
        if isinstance(check, Sql):
            try:
                _checked(check.query, wired.inputs)
            except InvalidSql as refusal:
                place = f"{refusal.where} of the query: " if refusal.where else ""
                yield ConfigProblem((*path, "query"), f"{place}{refusal.message}", refusal.hint, refusal.reason)
        elif check.input is None and len(wired.inputs) > 1:
            yield ConfigProblem(path, "which input is checked?", f"input: one of {', '.join(wired.inputs)}")


def ignored_settings(config: Mapping[str, Any], _outputs: Sequence[DagOutput]) -> Mapping[ConfigPath, str]:
    reason = " on a check of kind sql: its query names the inputs that it reads"
    return {
        ("checks", index, "input"): reason for index, check in enumerate(config["checks"]) if check["kind"] == "sql"
    }


SPEC = OperatorSpec(
    checked_by(Config),
    ON_SPARK,
    storages=(Storage.PARQUET,),
    ignores=ignored_settings,
    check_wiring=check_wiring,
    reads=every_input,
    narrows=every_input,
    makes_whole=in_full,
)


def run(ctx: TaskContext[Config]) -> Outcome | None:
    """Commit the report if no check of level `fail` failed; otherwise it is the task's error."""
    (output,) = ctx.outputs
    failed: list[str] = []
    left: list[str] = []
    for wanted_part in (WHOLE,) if ctx.config.mode == "full" else ctx.parts(output):
        ready = _ready(ctx, wanted_part, left)
        for part in ready:
            verdicts = _Part(ctx, part).verdicts()
            failed += [
                f"{item.check}: {item.explanation}" for item in verdicts if not item.passed and item.level == "fail"
            ]
            output.write_table(report(verdicts, part), part)
    if failed:
        count = f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed"
        raise WorkFailed(f"{count}: {'; '.join(failed)}", where="/config/checks", hint="nothing was committed")
    return Outcome(message="; ".join(left))


def _ready(ctx: TaskContext[Config], part: InputPartition, left: list[str]) -> Sequence[InputPartition]:
    """Return the ranges of the part that both sides of every comparison have.

    The rest has no report yet: when the input that lacks it is updated, the task created then finds both.
    """
    ready: tuple[InputPartition, ...] = (part,)
    lacking: list[str] = []
    for name in _compared(ctx):
        there = ctx.input(name).committed(part)
        if there != (part,):
            lacking.append(name)
            ready = intersect(_ranges(ready), _ranges(there))
    if lacking:
        rest = subtract([part], _ranges(ready)) if isinstance(part, Range) else ()
        parts = ", ".join(map(format_partition_key, rest)) if rest else str(part)
        left.append(f"{parts} is left to a later task: {', '.join(lacking)} is not there yet")
    return ready


def _compared(ctx: TaskContext[Config]) -> Sequence[str]:
    """Inputs of comparisons that both trigger tasks; an input that is only read is compared as it is."""
    if ctx.config.mode == "full":
        return ()
    pairs = [
        (check.input or ctx.inputs[0].name, check.other)
        for check in ctx.config.checks
        if isinstance(check, CompareRows)
    ]
    return list(
        dict.fromkeys(name for pair in pairs if all(ctx.input(item).ref.follows for item in pair) for name in pair)
    )


def _ranges(parts: Sequence[InputPartition]) -> list[Range]:
    return [partition for partition in parts if isinstance(partition, Range)]


class _Part:
    """All checks for one partition."""

    def __init__(self, ctx: TaskContext[Config], part: Range | str) -> None:
        self._ctx = ctx
        self._part = part
        self._frames: dict[str, DataFrame] = {}

    def verdicts(self) -> list[CheckResult]:
        """Run all checks together; if one of them cannot run at all, each alone: a warning stops nothing."""
        checks = dict(enumerate(self._ctx.config.checks))
        try:
            return self._together(checks)
        except (WorkFailed, InvalidSql) as wrong:
            if wrong.retryable or all(check.level == "fail" for check in checks.values()):
                raise
        return [self._alone(index, check) for index, check in checks.items()]

    def _together(self, checks: Mapping[int, AnyCheck]) -> list[CheckResult]:
        from tracelake.spark.failures import spark_failures

        with spark_failures("/config/checks"):
            totals = {name: self._totals(name, checks) for name in self._counted(checks)}
            return [self._verdict(index, check, totals) for index, check in checks.items()]

    def _alone(self, index: int, check: AnyCheck) -> CheckResult:
        try:
            (verdict,) = self._together({index: check})
        except (WorkFailed, InvalidSql) as wrong:
            if wrong.retryable or check.level == "fail":
                raise
            return CheckResult(
                called(check),
                check.level,
                passed=False,
                failing_rows=0,
                explanation=f"it could not be checked: {wrong.message}",
            )
        return verdict

    def _frame(self, name: str) -> DataFrame:
        if name not in self._frames:
            full = self._ctx.config.mode == "full"
            self._frames[name] = self._ctx.input(name).rows_for(self._part, full=full)
        return self._frames[name]

    def _counted(self, checks: Mapping[int, AnyCheck]) -> list[str]:
        """Inputs with counted checks, each once."""
        names: dict[str, None] = {}
        for check in checks.values():
            if not isinstance(check, Sql | Unique):
                names[self._input(check)] = None  # a unique column is counted only along with others
            if isinstance(check, CompareRows):
                names[check.other] = None
        return list(names)

    def _totals(self, name: str, checks: Mapping[int, AnyCheck]) -> Mapping[str, Any]:
        """Run one aggregation for everything that is counted over the rows of an input."""
        from pyspark.sql import functions as f

        frame = self._frame(name)
        counts = [f.count(f.lit(1)).alias("rows")]
        for index, check in checks.items():
            if not isinstance(check, Sql) and self._input(check) == name:
                counted = aggregates(frame, check, self._numbered(name, checks))
                counts += [column.alias(f"{key}_{index}") for key, column in counted.items()]
        row = frame.agg(*counts).first()
        return row.asDict() if row is not None else {}

    def _numbered(self, name: str, among: Mapping[int, AnyCheck]) -> set[str]:
        """Columns of an input whose distinct values are counted for another check.

        One such column costs no more than grouping by it. With a second, every row would be read twice.
        """
        checks = [item for item in among.values() if isinstance(item, Continuous) and self._input(item) == name]
        columns = {item.column for item in checks}
        return columns if len(columns) == 1 else set()

    def _input(self, check: Check) -> str:
        return check.input or self._ctx.inputs[0].name

    def _verdict(self, index: int, check: Any, totals: Mapping[str, Mapping[str, Any]]) -> CheckResult:
        if isinstance(check, Sql):
            failing, explanation = self._sql(check)
        else:
            row = totals.get(self._input(check), {})
            counts = {key.removesuffix(f"_{index}"): value for key, value in row.items() if key.endswith(f"_{index}")}
            if not isinstance(check, Unique):
                failing, explanation = self._judged(check, int(row["rows"]), counts, totals)
            elif counts and int(row["rows"]) == int(counts["different"]) + min(int(counts["nulls"]), 1):
                failing, explanation = 0, ""  # NULL is one key, as in every grouping
            else:
                failing, explanation = self._unique(check)
        return CheckResult(
            called(check), check.level, failing == 0, min(failing, MOST_ROWS), explanation if failing else ""
        )

    def _judged(
        self, check: Any, rows: int, counts: Mapping[str, Any], totals: Mapping[str, Mapping[str, Any]]
    ) -> tuple[int, str]:
        if isinstance(check, NotNull):
            failing = int(counts["bad"] or 0)
            return failing, (failing and self._explained(check, failing, "with NULL")) or ""
        if isinstance(check, InRange):
            failing = int(counts["bad"] or 0)
            return failing, (failing and self._explained(check, failing, f"outside {ends(check)}")) or ""
        if isinstance(check, Continuous):
            return self._gaps(check, rows, counts)
        if isinstance(check, RowCount):
            short = max((check.min or 0) - rows, 0)
            extra = max(rows - check.max, 0) if check.max is not None else 0
            return short or extra, f"{rows} rows, not {ends(check)}"
        other = int(totals[check.other]["rows"])
        apart = abs(rows - other)
        return (apart if apart > check.tolerance else 0), (
            f"{rows} rows, and {check.other} has {other}"
            + (f" (at most {check.tolerance} apart)" if check.tolerance else "")
        )

    def _explained(self, check: Any, failing: int, what: str) -> str:
        """With some sample rows, read only when there are any."""
        frame = self._frame(self._input(check))
        bad = frame.where(fails(frame, check))
        return f"{failing} rows {what}, such as {sample_rows(bad)}"

    def _unique(self, check: Unique) -> tuple[int, str]:
        from pyspark.sql import functions as f

        frame = self._frame(self._input(check))
        groups = frame.groupBy(*check.columns).agg(f.count(f.lit(1)).alias("_times")).where(f.col("_times") > 1)
        total = f.sum(f.col("_times") - 1).over(everything())
        rows = groups.withColumn("_all", total).orderBy(*check.columns).limit(SAMPLES).collect()
        if not rows:
            return 0, ""
        keys = ", ".join(row_text({name: row[name] for name in check.columns}) for row in rows)
        return int(rows[0]["_all"]), f"{rows[0]['_all']} rows more than keys, such as {keys}"

    def _gaps(self, check: Continuous, rows: int, counts: Mapping[str, Any]) -> tuple[int, str]:
        """Each number once from the first to the last: of the partition, if its rows are numbered by this column."""
        if isinstance(self._part, Range) and check.column == NUMBER and self._ctx.input(self._input(check)).ref.follows:
            first, last = self._part.edges
        elif rows == 0:
            return 0, ""
        elif counts["least"] is None:
            return rows, f"{rows} rows, and all of them with NULL"
        else:
            first, last = int(counts["least"]), int(counts["most"])
        wanted, there = last - first + 1, int(counts["different"] or 0)
        missing = wanted - there
        if missing <= 0:
            return 0, ""
        return missing, f"{missing} of {wanted} numbers are missing, such as {self._missing(check, first, last)}"

    def _missing(self, check: Continuous, first: int, last: int) -> str:
        """Find the ends of gaps: a number without a predecessor ends one."""
        from pyspark.sql import functions as f

        frame = self._frame(self._input(check))
        kind = "long" if first > -(2**63) and last < 2**63 - 1 else "decimal(38,0)"
        number = f.col(check.column).cast(kind)
        wanted = f.col("n").between(f.lit(str(first)).cast(kind), f.lit(str(last)).cast(kind))
        there = frame.select(number.alias("n")).where(wanted).distinct()
        outer = self._ctx.spark.createDataFrame([(str(first - 1),), (str(last + 1),)], "n string")
        edges = there.unionAll(outer.select(f.col("n").cast(kind)))
        after = edges.withColumn("next", f.lead("n").over(in_order("n")))
        found = after.where(f.col("next") > f.col("n") + 1).orderBy("n").limit(SAMPLES).collect()
        spans = [(int(row["n"]) + 1, int(row["next"]) - 1) for row in found]
        return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in spans)

    def _sql(self, check: Sql) -> tuple[int, str]:
        """The query returns the rows that fail."""
        from pyspark.sql import functions as f

        from tracelake.spark.plan_check import select

        query = _checked(check.query, [item.name for item in self._ctx.inputs])
        frame = select(self._ctx.spark, query, {name: self._frame(name) for name in query.tables}, without_plans=True)
        total = f.count(f.lit(1)).over(everything())
        rows = frame.withColumn("_all", total).limit(SAMPLES).collect()
        if not rows:
            return 0, ""
        samples = ", ".join(
            row_text({key: value for key, value in row.asDict().items() if key != "_all"}) for row in rows
        )
        return int(rows[0]["_all"]), f"{rows[0]['_all']} rows, such as {samples}"


def _checked(query: str, inputs: Sequence[str]) -> Any:
    from tracelake.domain.sql.gate import check_sql

    return check_sql(query, inputs, bounded=False)
