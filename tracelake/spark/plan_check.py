"""The second check of SQL (the first is `domain/sql/gate.py`): Spark's plan reads only what was granted.

First, Spark's parser must return a query and no command: a command would run as soon as it is analysed. Then the whole
analysed plan is checked, including WITH parts and subqueries in expressions: every node is of a known kind, every leaf
is a granted view or a literal row, and no expression reads anything but its arguments.

A Spark Connect client cannot see plans. There only the first check applies: `select` refuses that unless its caller
accepts it. Jobs do (their SQL was written by those who deploy DAGs); queries from outside must not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tracelake.domain.sql.clock import is_clock_word
from tracelake.domain.sql.functions import CLOCK_WORDS
from tracelake.domain.sql.gate import SAME_AGAIN, CheckedSql
from tracelake.errors import InvalidSql
from tracelake.spark.failures import first_line
from tracelake.spark.plan_nodes import PlanNode, SparkPlan, read_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints Java's stack for every error


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
HARMLESS: Final = _words("""
    Project Filter Aggregate Join Sort GlobalLimit LocalLimit Offset Distinct Union Intersect Except SubqueryAlias
    View Window Expand Generate WithCTE CTERelationDef CTERelationRef OneRowRelation LocalRelation
    ResolvedHint
""")
"""Kinds of analysed nodes that a query may have. Views of other names and all other leaves are refused."""
PARSED: Final = HARMLESS | _words("""
    UnresolvedWith UnresolvedHaving WithWindowDefinition UnresolvedHint Pivot Unpivot
    UnresolvedQualify
""")
"""The same before analysis."""
ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis."
KEPT_COLUMN: Final = f"{ANALYSIS}TempResolvedColumn"
"""What Spark leaves around a column of a HAVING that is in a function like `equal_null`."""
UNRESOLVED: Final = _words("""
    UnresolvedRelation UnresolvedInlineTable UnresolvedSubqueryColumnAliases UnresolvedHaving UnresolvedAttribute
    UnresolvedFunction UnresolvedStar UnresolvedStarExcept UnresolvedStarExceptOrReplace UnresolvedAlias
    UnresolvedExtractValue UnresolvedOrdinal UnresolvedGenerator UnresolvedQualify MultiAlias
""")
"""Names that Spark resolves during analysis; the result is checked again."""
OUTWARD: Final = _words("""
    CallMethodViaReflection TryReflect InputFileName InputFileBlockStart InputFileBlockLength SparkPartitionID
    MonotonicallyIncreasingID CurrentUser CurrentDatabase CurrentCatalog SessionUser SparkVersion PythonUDF
    PythonUDAF ScalaUDF ScalaUDAF ScalaAggregator HiveSimpleUDF HiveGenericUDF UserDefinedExpression
    FileSourceMetadataAttribute VariableReference NamedParameter PosParameter ExpressionWithUnresolvedIdentifier
    PlanWithUnresolvedIdentifier AesDecrypt AesEncrypt RaiseError
""")
"""Expressions whose value does not follow from their arguments, or that have side effects."""


TIMES: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class CheckedPlan:
    """A query that passed the second check."""

    frame: DataFrame
    lasting: bool
    """No text in it can be read as a time that depends on the clock: CAST('now' AS TIMESTAMP)."""
    clock_word: str | None
    """A text that is read as such a time."""


def select(
    spark: SparkSession, checked: CheckedSql, frames: Mapping[str, DataFrame], *, without_plans: bool = False
) -> DataFrame:
    """Return the checked query of a job over these DataFrames, by their granted names. Nothing has run yet."""
    names = {name: f"v_{uuid4().hex}" for name in checked.tables}
    views, text = {names[name]: frames[name] for name in names}, checked.render(names)
    with _translated_errors(names):
        if without_plans and not _has_plans(spark):
            return _unchecked(spark, text, views)
        with _views(spark, views):
            result = check_plan(spark, text, frozenset(views))
    if result.clock_word is not None:
        raise InvalidSql(f"{result.clock_word!r} is read as a time, another each time", hint=SAME_AGAIN)
    return result.frame


def checked_frame(spark: SparkSession, text: str, views: frozenset[str]) -> DataFrame:
    """Return the text as a DataFrame, if Spark reads it as a query over these temporary views alone."""
    return check_plan(spark, text, views).frame


def check_plan(spark: SparkSession, text: str, views: frozenset[str]) -> CheckedPlan:
    """The same, with the results of the check."""
    if not _has_plans(spark):
        raise InvalidSql("this Spark does not show its plans, so the query cannot be checked a second time")
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession  # noqa: SLF001 - there is no other way
    parsed = session.sessionState().sqlParser().parsePlan(text)
    _walk(read_plan(spark, parsed), _refuse_parsed)
    frame = session.sql(text)  # `spark.sql` would make eight more calls to Java, for parameters that there are none of
    analysed = read_plan(spark, frame.queryExecution().analyzed())
    _walk(analysed, lambda node: _refuse_analysed(node, views), views)
    texts = list(_made_times(analysed))
    return CheckedPlan(
        DataFrame(frame, spark),
        lasting=not any(text is None or text.strip().casefold().startswith(CLOCK_WORDS) for text in texts),
        clock_word=next((text for text in texts if text is not None and is_clock_word(text)), None),
    )


def _unchecked(spark: SparkSession, text: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Return the query without a check of its plan.

    Spark Connect keeps a query as text and analyses it when it runs: the DataFrames are passed as arguments, because
    views would be gone by then.
    """
    if not views:
        return spark.sql(text)
    template = text.replace("{", "{{").replace("}", "}}")
    for view in views:
        template = template.replace(view, f"{{{view}}}")
    frames: dict[str, Any] = dict(views)
    return spark.sql(template, **frames)


def _has_plans(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession")


@contextmanager
def _views(spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Temporary views for the analysis; the plan does not need them later."""
    try:
        for name, frame in frames.items():
            frame.createTempView(name)
        yield
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


@contextmanager
def _translated_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Raise Spark's error as one line, with the author's names."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as refusal:
        raise InvalidSql(first_line(str(refusal), names), hint="check the names and types of columns") from None


def _walk(plan: SparkPlan, refuse: Callable[[PlanNode], None], views: frozenset[str] = frozenset()) -> None:
    """Visit every node of a plan, and of the expressions and plans in its nodes; nothing inside a granted view."""
    seen, waiting = {0}, [0]
    while waiting:
        node = plan[waiting.pop()]
        refuse(node)
        if not _is_granted_view(node, views):
            inside = {*node.children, *node.fields} - seen
            seen |= inside
            waiting += inside


def _made_times(plan: SparkPlan) -> Iterator[str | None]:
    """Yield every text that Spark casts to a time; None for one that it computes first.

    A cast of a column happens per row, where no word means the clock.
    """
    for at, node in enumerate(plan):
        if node.kind == f"{EXPRESSIONS}Cast" and node.type in TIMES:
            made_of = plan[node.children[0]]
            if made_of.kind == f"{EXPRESSIONS}Literal":
                yield str(made_of.value)
            elif not any(part.kind == f"{EXPRESSIONS}AttributeReference" for part in plan.below(at)):
                yield None


def _refuse_parsed(node: PlanNode) -> None:
    kind, short = node.kind, node.kind.rpartition(".")[2]
    known = (
        (kind.startswith(PLANS) and short in PARSED)
        or (kind.startswith(ANALYSIS) and short in UNRESOLVED)
        or (kind.startswith(EXPRESSIONS) and short not in OUTWARD)
    )
    if not known:
        raise _refusal(short)
    if short == "UnresolvedRelation" and node.words > 1:
        raise InvalidSql("a table is named by one word, without a dot")


def _refuse_analysed(node: PlanNode, views: frozenset[str]) -> None:
    kind, short = node.kind, node.kind.rpartition(".")[2]
    if kind.startswith(PLANS):
        if short not in HARMLESS:
            raise _refusal(short)
        if short == "View" and not _is_granted_view(node, views):
            raise InvalidSql("the query reads a table that was not granted")
    elif kind == KEPT_COLUMN:
        return  # the column in it is checked like any other
    elif not kind.startswith(EXPRESSIONS):
        raise InvalidSql("the query reads something that was not granted")
    elif short in OUTWARD:
        raise _refusal(short)


def _is_granted_view(node: PlanNode, views: frozenset[str]) -> bool:
    return node.kind == f"{PLANS}View" and node.temporary and node.table in views


def _refusal(kind: str) -> InvalidSql:
    return InvalidSql(f"Spark reads a part of the query as {kind}, which is not allowed")
