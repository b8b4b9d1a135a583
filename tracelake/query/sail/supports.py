"""Decides whether Sail gives the same rows as Spark for a query. What is not known to be the same runs on Spark.

A query that Sail refuses is no matter, since Spark runs it then. So this keeps from Sail what it would answer, and
differently: arithmetic (sums that exceed their type wrap around, decimals get other types), conversions between types,
NaN, and the names of columns that the query does not name. `tests/query/test_parity.py` compares what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.gate import CheckedSql
from tracelake.query.checked_query import Relation
from tracelake.query.sail.families import BY_TYPE, Families, OtherFamilyError

NODES: Final[frozenset[type[Any]]] = frozenset({
    *(exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Join),
    *(exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Table, exp.Union, exp.Intersect, exp.Except, exp.Distinct),
    *(exp.Alias, exp.Star, exp.Column, exp.Identifier, exp.Paren, exp.Window, exp.WindowSpec, exp.Filter, exp.Exists),
    *(exp.Literal, exp.Boolean, exp.Null, exp.Neg, exp.HexString, exp.Anonymous, exp.Case, exp.If, exp.Var),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Is, exp.Like, exp.DPipe),
})  # fmt: skip


def why_not(checked: CheckedSql, relations: Mapping[str, Relation]) -> str | None:
    """Return a word for why Sail does not run the query; None if it does."""
    if any(type(node) not in NODES for node in checked.tree.walk()):
        return "syntax"
    columns = [(item.name, item.type) for relation in relations.values() for item in _columns(relation)]
    families = Families(columns)
    try:
        for node in reversed(list(checked.tree.bfs())):  # from the inside out: names are defined before they are used
            if isinstance(node, exp.SetOperation):
                _check_arms(node, families)
            elif isinstance(node, exp.Select):
                _check_select(node, families, columns)
    except OtherFamilyError:
        return "types"
    return None


def _columns(relation: Relation) -> Iterable[Any]:
    return (relation.cold.columns or ()) if relation.cold is not None else ()


def _check_select(select: exp.Select, families: Families, columns: list[tuple[str, str]]) -> None:
    for output in select.expressions:
        if _is_star(output):
            _check_star(columns)
        elif isinstance(output, exp.Alias):
            if (family := families.of(output)) == "null":
                raise OtherFamilyError("null")
            families.define(output.alias, family)
        elif isinstance(output, exp.Column):
            families.of(output)
        else:
            raise OtherFamilyError("names")
    for part in _other_parts(select):
        families.of(part)


def _other_parts(select: exp.Select) -> Iterable[Any]:
    """Yield the expressions of a SELECT beside its outputs, each of a known family if it is the same on Sail."""
    for clause in ("where", "having"):
        if (condition := select.args.get(clause)) is not None:
            yield condition.this
    for join in select.args.get("joins") or ():
        yield from filter(None, [join.args.get("on")])
        yield from (exp.column(name.name) for name in join.args.get("using") or ())
    for clause in ("group", "order"):
        if (parts := select.args.get(clause)) is not None:
            yield from parts.expressions
    for window in select.find_all(exp.Window):
        yield from window.args.get("partition_by") or ()
        yield from window.args["order"].expressions if window.args.get("order") else ()
    for item in select.find_all(exp.Filter):
        yield item.expression.this


def _check_arms(operation: exp.SetOperation, families: Families) -> None:
    arms = [[families.of(output) for output in arm.selects] for arm in (operation.left, operation.right)]
    if arms[0] != arms[1] or "decimal" in arms[0]:
        raise OtherFamilyError("arms")


def _check_star(columns: list[tuple[str, str]]) -> None:
    if any(type_.partition("(")[0] not in BY_TYPE for _, type_ in columns):
        raise OtherFamilyError("star")


def _is_star(output: exp.Expr) -> bool:
    return isinstance(output, exp.Star) or (isinstance(output, exp.Column) and isinstance(output.this, exp.Star))
