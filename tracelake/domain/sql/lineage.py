"""The input columns of each result column of a query, from its checked tree.

No schema is needed: a name that could be a column of several inputs is taken to come from each of them, and a star that
reaches an input is recorded as `*`. So lineage may name too much, never too little. Conditions (WHERE, ON, the order)
decide which rows there are, not what a column holds, and are not part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlglot import exp

from tracelake.domain.dag.catalog import ColumnSource
from tracelake.domain.sql.functions import UNIT_FIRST
from tracelake.domain.sql.gate import CheckedSql
from tracelake.domain.sql.refusal import place_of
from tracelake.errors import InvalidSql

STAR = "*"
Origin = tuple[str, str]
"""An input and its column."""


def column_lineage(checked: CheckedSql) -> tuple[ColumnSource, ...]:
    """Sorted; an output column made of constants alone is not in it."""
    columns = _query(checked.tree, _Scope({name.casefold(): _Input(name) for name in checked.tables}))
    return tuple(sorted({ColumnSource(name, *origin) for name, origins in columns.items() for origin in origins}))


def unnamed_columns(checked: CheckedSql) -> Iterator[int]:
    """Positions, from 1, of result columns that have no name of their own."""
    for number, expression in enumerate(_first_select(checked.tree).expressions, start=1):
        if not _name(expression) and not expression.is_star:
            yield number


def refuse_repeated_columns(checked: CheckedSql) -> None:
    """Spark ignores case. The columns of a star are not known here."""
    seen: dict[str, int] = {}
    for number, expression in enumerate(_first_select(checked.tree).expressions, start=1):
        name = _name(expression).casefold() if not expression.is_star else ""
        if name in seen:
            line, column = place_of(expression)
            raise InvalidSql(
                f"columns {seen[name]} and {number} of the result are both called {_name(expression)}",
                line=line,
                column=column,
                hint="name one of them otherwise: expression AS name",
            )
        if name:
            seen[name] = number


@dataclass(frozen=True)
class _Input:
    """A granted table: any column may be in it."""

    name: str

    def column(self, name: str) -> frozenset[Origin]:
        return frozenset({(self.name, name)})

    def has(self, name: str) -> bool | None:  # noqa: ARG002 - unknown for every name
        return None

    def all(self) -> Mapping[str, frozenset[Origin]]:
        return {STAR: self.column(STAR)}


@dataclass(frozen=True)
class _Made:
    """A subquery or WITH: its columns are known, unless a star is among them."""

    columns: Mapping[str, frozenset[Origin]]

    def column(self, name: str) -> frozenset[Origin]:
        known = {key.casefold(): origins for key, origins in self.columns.items()}
        if name.casefold() in known:
            return known[name.casefold()]
        return frozenset((table, name if column == STAR else column) for table, column in known.get(STAR, frozenset()))

    def has(self, name: str) -> bool | None:
        if name.casefold() in {key.casefold() for key in self.columns}:
            return True
        return None if STAR in self.columns else False

    def all(self) -> Mapping[str, frozenset[Origin]]:
        return self.columns


@dataclass(frozen=True)
class _Pivoted:
    """A relation after PIVOT or UNPIVOT: a column of it may be made of what is turned, whatever its name."""

    before: _Input | _Made | _Pivoted
    turned: frozenset[Origin]

    def column(self, name: str) -> frozenset[Origin]:
        return self.before.column(name) | self.turned

    def has(self, name: str) -> bool | None:
        return self.before.has(name) or None

    def all(self) -> Mapping[str, frozenset[Origin]]:
        kept = {name: origins | self.turned for name, origins in self.before.all().items()}
        return {**kept, STAR: kept.get(STAR, frozenset()) | self.turned}


_Relation = _Input | _Made | _Pivoted


@dataclass(frozen=True)
class _Scope:
    """What table names mean here."""

    names: Mapping[str, _Relation]

    def also(self, name: str, relation: _Relation) -> _Scope:
        return _Scope({**self.names, name.casefold(): relation})


def _query(tree: exp.Expr, scope: _Scope) -> dict[str, frozenset[Origin]]:
    for cte in tree.args["with_"].expressions if tree.args.get("with_") else ():
        scope = scope.also(cte.alias, _renamed(_query(cte.this, scope), cte.args.get("alias")))
    if isinstance(tree, exp.Subquery):
        return _query(tree.this, scope)
    if isinstance(tree, exp.SetOperation):
        left, right = _query(tree.left, scope), _query(tree.right, scope)
        return _matched(left, right)
    if isinstance(tree, exp.Select):
        return _select(tree, scope)
    return {}


def _matched(
    left: Mapping[str, frozenset[Origin]], right: Mapping[str, frozenset[Origin]]
) -> dict[str, frozenset[Origin]]:
    """By position; where a star hides positions, each column may come from all that the other side reads."""
    if STAR in left or STAR in right or len(left) != len(right):
        others = frozenset().union(*right.values()) if right else frozenset()
        return {name: origins | others for name, origins in left.items()}
    return {name: origins | other for (name, origins), other in zip(left.items(), right.values(), strict=True)}


def _select(tree: exp.Select, scope: _Scope) -> dict[str, frozenset[Origin]]:
    sources = dict(_sources(tree, scope))
    found: dict[str, frozenset[Origin]] = {}
    for number, expression in enumerate(tree.expressions):
        if expression.is_star:
            for name, origins in _star(expression, sources).items():
                found[name] = found.get(name, frozenset()) | origins
        else:
            name = _name(expression) or f"column {number + 1}"
            found[name] = found.get(name, frozenset()) | _origins(expression, sources, scope)
    return found


def _sources(tree: exp.Select, scope: _Scope) -> Iterator[tuple[str, _Relation]]:
    parts = [tree.args["from_"].this] if tree.args.get("from_") else []
    parts += [join.this for join in tree.args.get("joins") or ()]
    for part in parts:
        yield from _source(part, scope)
    for lateral in tree.args.get("laterals") or ():
        before = dict(_plain_sources(parts, scope))
        origins = _origins(lateral.this, before, scope)
        alias = lateral.args.get("alias")
        columns = [column.name for column in alias.columns] if alias else []
        yield alias.name.casefold() if alias else "", _Made(dict.fromkeys(columns or ["col"], origins))


def _plain_sources(parts: list[exp.Expr], scope: _Scope) -> Iterator[tuple[str, _Relation]]:
    for part in parts:
        yield from _source(part, scope)


def _source(part: exp.Expr, scope: _Scope) -> Iterator[tuple[str, _Relation]]:
    for name, relation in _unpivoted(part, scope):
        found, called = relation, name
        for pivot in part.args.get("pivots") or ():
            alias = pivot.args.get("alias")
            found = _Pivoted(found, _turned(pivot, {called: found}, scope))
            called = alias.name.casefold() if alias else called
        yield called, found


def _turned(pivot: exp.Pivot, sources: Mapping[str, _Relation], scope: _Scope) -> frozenset[Origin]:
    parts = [*pivot.expressions, *(part for field in pivot.fields for part in (field.this, *field.expressions))]
    return frozenset().union(*(_origins(part, sources, scope) for part in parts))


def _unpivoted(part: exp.Expr, scope: _Scope) -> Iterator[tuple[str, _Relation]]:
    alias = part.args.get("alias")
    if isinstance(part, exp.Table):
        relation = scope.names[part.name.casefold()]
        yield part.alias_or_name.casefold(), relation
        for join in part.args.get("joins") or ():
            yield from _source(join.this, scope)
    elif isinstance(part, exp.Subquery) and isinstance(part.this, exp.Table):
        yield from _source(part.this, scope)
    elif isinstance(part, exp.Subquery):
        yield part.alias.casefold() or str(id(part)), _renamed(_query(part.this, scope), alias)
    elif isinstance(part, exp.Values):
        names = [column.name for column in alias.columns] if alias else []
        yield part.alias.casefold(), _Made(dict.fromkeys(names, frozenset()))


def _renamed(columns: Mapping[str, frozenset[Origin]], alias: exp.TableAlias | None) -> _Made:
    names = [column.name for column in alias.columns] if alias else []
    if not names:
        return _Made(columns)
    if STAR in columns or len(names) != len(columns):
        everything = frozenset().union(*columns.values()) if columns else frozenset()
        return _Made(dict.fromkeys(names, everything))
    return _Made(dict(zip(names, columns.values(), strict=True)))


def _star(star: exp.Expr, sources: Mapping[str, _Relation]) -> dict[str, frozenset[Origin]]:
    asked = star.table.casefold() if isinstance(star, exp.Column) else ""
    inner = star.this if isinstance(star, exp.Column) else star
    without = {column.name.casefold() for column in inner.args.get("except_") or ()}
    found: dict[str, frozenset[Origin]] = {}
    for name, relation in sources.items():
        if asked and name != asked:
            continue
        for column, origins in relation.all().items():
            if column.casefold() not in without:
                found[column] = found.get(column, frozenset()) | origins
    return found


def _origins(node: exp.Expr, sources: Mapping[str, _Relation], scope: _Scope) -> frozenset[Origin]:
    """Every column that the expression reads; a subquery's result is made of what its columns are made of."""
    found: frozenset[Origin] = frozenset()
    stack = [node]
    while stack:
        expression = stack.pop()
        if isinstance(expression, exp.Query):
            found |= frozenset().union(*_query(expression, scope).values())
        elif isinstance(expression, exp.Column) and not expression.is_star:
            found |= _column(expression, sources)
        else:
            stack.extend(part for part in expression.iter_expressions() if not _is_unit(part))
    return found


def _is_unit(part: exp.Expr) -> bool:
    """SECOND in timestampdiff(SECOND, a, b), which is no column."""
    call = part.parent
    return (
        isinstance(call, exp.Anonymous)
        and str(call.this).casefold() in UNIT_FIRST
        and len(call.expressions) == len(("unit", "from", "to"))
        and part is call.expressions[0]
    )


def _column(column: exp.Column, sources: Mapping[str, _Relation]) -> frozenset[Origin]:
    first, *rest = [part.name for part in column.parts]
    if rest and first.casefold() in sources:
        return sources[first.casefold()].column(rest[0])
    certain = [relation for relation in sources.values() if relation.has(first)]
    possible = certain or [relation for relation in sources.values() if relation.has(first) is None]
    return frozenset().union(*(relation.column(first) for relation in possible))


def _name(expr: exp.Expr) -> str:
    """The name of a result column; Spark's names for unnamed ones are not stable."""
    return expr.alias_or_name if isinstance(expr, exp.Alias | exp.Column | exp.Dot) else ""


def _first_select(tree: exp.Expr) -> exp.Select:
    while not isinstance(tree, exp.Select):
        tree = tree.this
    return tree
