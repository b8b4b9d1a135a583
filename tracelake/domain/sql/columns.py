"""Whether a query's columns are there, as far as the columns of its tables are known, and what columns it gives.

What is not known is never refused: a table without known columns may have any, and so may what is made of it. A name
that could be an alias, a parameter of a lambda or the field of a struct is taken for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tracelake.domain.dag.catalog import Columns
from tracelake.domain.sql.functions import SESSION_WORDS
from tracelake.domain.sql.gate import CheckedSql
from tracelake.domain.sql.refusal import place_of
from tracelake.domain.text.suggest import closest
from tracelake.errors import InvalidSql

Sources = dict[str, Columns | None]
"""By the name that a query calls each of its tables; None: it may have any columns."""
UNITS = frozenset(
    {
        *("year", "years", "quarter", "month", "months", "week", "weeks", "day", "days", "dayofyear"),
        *("hour", "hours", "minute", "minutes", "second", "seconds", "millisecond", "microsecond"),
    }
)
"""Words that stand where a column could: dateadd(DAY, 1, at)."""
IMPLIED = frozenset({"window", "session_window", "grouping__id"}) | SESSION_WORDS
"""Columns that a GROUP BY makes, such as window.start, and functions without parentheses."""


def check_columns(checked: CheckedSql, tables: Mapping[str, Columns | None]) -> None:
    """Raises InvalidSql for the first column that is in none of the tables that it could come from."""
    if any(columns is not None for columns in tables.values()):
        result_columns(checked, tables)


def result_columns(checked: CheckedSql, tables: Mapping[str, Columns | None]) -> Columns | None:
    """In their order; None where that is not known."""
    known = {name.casefold(): columns for name, columns in tables.items()}
    return _query(checked.tree, _Scope({name.casefold(): known.get(name.casefold()) for name in checked.tables}))


@dataclass(frozen=True)
class _Scope:
    tables: Mapping[str, Columns | None]
    """What FROM may name: inputs and parts of a WITH."""
    outer: Sequence[Sources] = ()
    """Of the queries around this one, the nearest first."""
    bound: frozenset[str] = field(default_factory=frozenset)
    """Parameters of lambdas around this place, and aliases of the queries around."""


def _query(tree: exp.Expr, scope: _Scope) -> Columns | None:
    for cte in tree.args["with_"].expressions if tree.args.get("with_") else ():
        made = _renamed(_query(cte.this, scope), cte.args.get("alias"))
        scope = _Scope({**scope.tables, cte.alias.casefold(): made}, scope.outer, scope.bound)
    if isinstance(tree, exp.Subquery):
        return _query(tree.this, scope)
    if isinstance(tree, exp.SetOperation):
        left = _query(tree.left, scope)
        _query(tree.right, scope)
        return left
    return _select(tree, scope) if isinstance(tree, exp.Select) else None


def _select(tree: exp.Select, scope: _Scope) -> Columns | None:
    sources: Sources = {}
    for name, columns in _sources(tree, scope, sources):
        sources[name] = columns
    aliases = {item.alias.casefold() for item in tree.find_all(exp.Alias) if item.alias}
    inside = _Scope(scope.tables, (sources, *scope.outer), scope.bound | aliases)
    for name, value in tree.args.items():
        if name not in {"with_", "from_", "laterals", "hint"}:
            _check_value(value, inside)
    return _result(tree, sources)


def _sources(tree: exp.Select, scope: _Scope, before: Sources) -> Iterator[tuple[str, Columns | None]]:
    parts = [tree.args["from_"].this] if tree.args.get("from_") else []
    parts += [join.this for join in tree.args.get("joins") or ()]
    for part in parts:
        yield from _source(part, scope, before)
    for lateral in tree.args.get("laterals") or ():
        yield _lateral(lateral)


def _source(part: exp.Expr, scope: _Scope, before: Sources) -> Iterator[tuple[str, Columns | None]]:
    alias = part.args.get("alias")
    if part.args.get("pivots"):  # its columns follow from its values
        yield str(id(part)), None
    elif isinstance(part, exp.Table):
        yield part.alias_or_name.casefold(), _renamed(scope.tables.get(part.name.casefold()), alias)
    elif isinstance(part, exp.Subquery) and isinstance(part.this, exp.Query):
        inner = _Scope(scope.tables, (before, *scope.outer), scope.bound)
        yield part.alias.casefold() or str(id(part)), _renamed(_query(part.this, inner), alias)
    else:  # VALUES, nested joins and the like: not looked into
        yield str(id(part)), None
    for join in part.args.get("joins") or ():
        yield from _source(join.this, scope, before)
    for lateral in part.args.get("laterals") or ():
        yield _lateral(lateral)


def _lateral(lateral: exp.Expr) -> tuple[str, Columns | None]:
    """LATERAL VIEW: its columns are known if it names them."""
    alias = lateral.args.get("alias")
    names = tuple(column.name for column in alias.columns) if alias else ()
    return (alias.name.casefold() if alias else str(id(lateral))), names or None


def _renamed(columns: Columns | None, alias: exp.TableAlias | None) -> Columns | None:
    names = tuple(column.name for column in alias.columns) if alias else ()
    return names or columns


def _check_value(value: object, scope: _Scope) -> None:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, exp.Join):
            _check_value([item.args.get("on"), *(item.args.get("using") or ())], scope)
        elif isinstance(item, exp.Expr):
            _check(item, scope)


def _check(node: exp.Expr, scope: _Scope) -> None:
    if isinstance(node, exp.Query):
        _query(node, scope)
    elif isinstance(node, exp.Column):
        if not node.is_star:
            _check_column(node, scope)
    elif isinstance(node, exp.Star):
        return
    else:
        if isinstance(node, exp.Lambda):
            bound = {expression.name.casefold() for expression in node.expressions}
            scope = _Scope(scope.tables, scope.outer, scope.bound | bound)
        for inner in node.iter_expressions():
            _check(inner, scope)


def _check_column(column: exp.Column, scope: _Scope) -> None:
    first, *rest = [part.name.casefold() for part in column.parts]
    if first in scope.bound | IMPLIED or (not rest and isinstance(column.parent, exp.Func) and first in UNITS):
        return
    named = [sources[first] for sources in scope.outer if first in sources] if rest else []
    if any(columns is None or rest[0] in _folded(columns) for columns in named):
        return
    everything = [columns for sources in scope.outer for columns in sources.values()]
    if any(columns is None or first in _folded(columns) for columns in everything):
        return
    raise _unknown(column, named or everything)


def _unknown(column: exp.Column, tables: Sequence[Columns | None]) -> InvalidSql:
    line, place = place_of(column)
    known = [name for columns in tables for name in columns or ()]
    name = ".".join(part.name for part in column.parts)[:128]
    reason, hint = f"there is no column {name!r}", closest(column.name, known)
    return InvalidSql(reason, line=line, column=place, hint=hint, reason="unknown_column")


def _folded(columns: Columns) -> frozenset[str]:
    return frozenset(name.casefold() for name in columns)


def _result(tree: exp.Select, sources: Sources) -> Columns | None:
    names: list[str] = []
    for expression in tree.expressions:
        if expression.is_star:
            found = _star(expression, sources)
            if found is None:
                return None
            names += found
        elif isinstance(expression, exp.Alias | exp.Column | exp.Dot) and expression.alias_or_name:
            names.append(expression.alias_or_name)
        else:
            return None
    return tuple(names)


def _star(star: exp.Expr, sources: Sources) -> list[str] | None:
    table = star.table.casefold() if isinstance(star, exp.Column) else ""
    inner = star.this if isinstance(star, exp.Column) else star
    if any(inner.args.get(name) for name in ("except_", "replace", "rename")):
        return None
    asked = [columns for name, columns in sources.items() if not table or name == table]
    if not asked or any(columns is None for columns in asked):
        return None
    return [name for columns in asked for name in columns or ()]
