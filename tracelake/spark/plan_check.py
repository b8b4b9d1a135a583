"""The second line before SQL (the first is `domain/sql/gate.py`): what Spark made of it reads only what was granted.

Two looks. Spark's own parser must see a query and nothing that acts: a command would run as soon as it is analysed.
Then the analysed plan is walked whole, WITH parts and subqueries inside expressions included: every node is of a known
kind, every leaf is one of the granted views or a literal row, no expression looks outside of its arguments.

A Spark Connect client cannot see plans. There the first line stands alone: `select` says so by refusing unless its
caller accepts that. Jobs do (their SQL was written by who deploys DAGs); questions from outside must not.
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
from tracelake.spark.plan_nodes import Node, Plan, read_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints Java's stack of every refusal


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PLANS: Final = "org.apache.spark.sql.catalyst.plans.logical."
EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
HARMLESS: Final = _words("""
    Project Filter Aggregate Join Sort GlobalLimit LocalLimit Offset Distinct Union Intersect Except SubqueryAlias
    View Window Expand Generate WithCTE CTERelationDef CTERelationRef OneRowRelation LocalRelation
    ResolvedHint
""")
"""Kinds of analysed nodes a query may have. A view of another name is refused, and so is every other leaf."""
PARSED: Final = HARMLESS | _words("""
    UnresolvedWith UnresolvedHaving WithWindowDefinition UnresolvedHint Pivot Unpivot
    UnresolvedQualify
""")
"""The same before analysis."""
ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis."
UNRESOLVED: Final = _words("""
    UnresolvedRelation UnresolvedInlineTable UnresolvedSubqueryColumnAliases UnresolvedHaving UnresolvedAttribute
    UnresolvedFunction UnresolvedStar UnresolvedStarExcept UnresolvedStarExceptOrReplace UnresolvedAlias
    UnresolvedExtractValue UnresolvedOrdinal UnresolvedGenerator UnresolvedQualify MultiAlias
""")
"""Words whose meaning Spark looks up at analysis, and which then are looked at again."""
OUTWARD: Final = _words("""
    CallMethodViaReflection TryReflect InputFileName InputFileBlockStart InputFileBlockLength SparkPartitionID
    MonotonicallyIncreasingID CurrentUser CurrentDatabase CurrentCatalog SessionUser SparkVersion PythonUDF
    PythonUDAF ScalaUDF ScalaUDAF ScalaAggregator HiveSimpleUDF HiveGenericUDF UserDefinedExpression
    FileSourceMetadataAttribute VariableReference NamedParameter PosParameter ExpressionWithUnresolvedIdentifier
    PlanWithUnresolvedIdentifier AesDecrypt AesEncrypt RaiseError
""")
"""Expressions whose value does not follow from their arguments, or that reach out."""


TIMES: Final = ("date", "timestamp", "timestamp_ntz")


@dataclass(frozen=True)
class Looked:
    """A query that passed the second line."""

    frame: DataFrame
    lasting: bool
    """No text in it can be taken for a time that depends on when it is read: CAST('now' AS TIMESTAMP)."""
    clock_word: str | None
    """A text that certainly is."""


def select(
    spark: SparkSession, checked: CheckedSql, frames: Mapping[str, DataFrame], *, without_plans: bool = False
) -> DataFrame:
    """The query of a job over these DataFrames, by their granted names. Nothing has run yet when it is returned."""
    names = {name: f"v_{uuid4().hex}" for name in checked.tables}
    views, text = {names[name]: frames[name] for name in names}, checked.render(names)
    with _in_words(names):
        if without_plans and not _has_plans(spark):
            return _unseen(spark, text, views)
        with _views(spark, views):
            looked = looked_at(spark, text, frozenset(views))
    if looked.clock_word is not None:
        raise InvalidSql(f"{looked.clock_word!r} is read as a time, another each time", hint=SAME_AGAIN)
    return looked.frame


def checked_frame(spark: SparkSession, text: str, views: frozenset[str]) -> DataFrame:
    """Any text as a DataFrame, if Spark reads it as a query over these temporary views alone."""
    return looked_at(spark, text, views).frame


def looked_at(spark: SparkSession, text: str, views: frozenset[str]) -> Looked:
    """The same, with what the look has found."""
    if not _has_plans(spark):
        raise InvalidSql("this Spark does not show its plans, so the query cannot be checked a second time")
    from pyspark.sql.classic.dataframe import DataFrame

    session: Any = spark._jsparkSession  # noqa: SLF001 - there is no other way
    parsed = session.sessionState().sqlParser().parsePlan(text)
    _walk(read_plan(spark, parsed), _refuse_parsed)
    frame = session.sql(text)  # `spark.sql` would ask Java eight times more, for parameters that there are none of
    analysed = read_plan(spark, frame.queryExecution().analyzed())
    _walk(analysed, lambda node: _refuse_analysed(node, views), views)
    texts = list(_made_times(analysed))
    return Looked(
        DataFrame(frame, spark),
        lasting=not any(text is None or text.strip().casefold().startswith(CLOCK_WORDS) for text in texts),
        clock_word=next((text for text in texts if text is not None and is_clock_word(text)), None),
    )


def _unseen(spark: SparkSession, text: str, views: Mapping[str, DataFrame]) -> DataFrame:
    """Spark Connect keeps a query as text and reads it again when it runs: the DataFrames travel inside of it, because
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
    """Names that nobody else has, for the moment of analysis; the plan needs them no longer then."""
    try:
        for name, frame in frames.items():
            frame.createTempView(name)
        yield
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


@contextmanager
def _in_words(names: Mapping[str, str]) -> Iterator[None]:
    """Spark's refusal in one line, with the names that the author knows."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as refusal:
        said = str(refusal).strip().partition("\n")[0].partition("; line ")[0]
        for name, view in names.items():
            said = said.replace(view, name)
        raise InvalidSql(said, hint="check the names and types of columns") from None


def _walk(plan: Plan, refuse: Callable[[Node], None], views: frozenset[str] = frozenset()) -> None:
    """Every node of a plan, and of the expressions and plans inside of its nodes; not what is inside a granted view."""
    seen, waiting = {0}, [0]
    while waiting:
        node = plan[waiting.pop()]
        refuse(node)
        if not _is_granted_view(node, views):
            inside = {*node.children, *node.fields} - seen
            seen |= inside
            waiting += inside


def _made_times(plan: Plan) -> Iterator[str | None]:
    """Every text that Spark makes a time of, wherever that stands; None: one that it works out first.

    What is made of a column is made for each row, where no word means the clock.
    """
    for at, node in enumerate(plan):
        if node.kind == f"{EXPRESSIONS}Cast" and node.type in TIMES:
            made_of = plan[node.children[0]]
            if made_of.kind == f"{EXPRESSIONS}Literal":
                yield str(made_of.value)
            elif not any(part.kind == f"{EXPRESSIONS}AttributeReference" for part in plan.below(at)):
                yield None


def _refuse_parsed(node: Node) -> None:
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


def _refuse_analysed(node: Node, views: frozenset[str]) -> None:
    kind, short = node.kind, node.kind.rpartition(".")[2]
    if kind.startswith(PLANS):
        if short not in HARMLESS:
            raise _refusal(short)
        if short == "View" and not _is_granted_view(node, views):
            raise InvalidSql("the query reads a table that was not granted")
    elif not kind.startswith(EXPRESSIONS):
        raise InvalidSql("the query reads something that was not granted")
    elif short in OUTWARD:
        raise _refusal(short)


def _is_granted_view(node: Node, views: frozenset[str]) -> bool:
    return node.kind == f"{PLANS}View" and node.temporary and node.table in views


def _refusal(kind: str) -> InvalidSql:
    return InvalidSql(f"Spark reads a part of the query as {kind}, which is not allowed")
