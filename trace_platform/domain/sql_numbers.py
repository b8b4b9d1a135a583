"""Which numbers of a column a checked query can need of each table, by its conditions: files without them are not read.

Only what is certain counts: comparisons of the column with whole numbers in the WHERE of the SELECT that reads the
table, and equality with that column of another table in inner joins. Whatever else a condition says narrows nothing.
A row without a number (NULL) passes none of these comparisons, so it is not needed where they have to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from sqlglot import exp

from trace_platform.domain.sql_gate import CheckedSql, granted_tables

Span = tuple[float, float]
"""Both ends in it; an end that is not infinite is a whole number, which Python compares exactly."""
Spans = tuple[Span, ...]
"""In order, and apart."""
ALL: Final[Spans] = ((float("-inf"), float("inf")),)
QUALIFIED: Final = 2
PLAIN_TABLE: Final = frozenset({"this", "alias"})
PLAIN_SELECT: Final = frozenset({
    *("with_", "expressions", "distinct", "from_", "joins", "laterals", "where"),
    *("group", "having", "windows", "qualify", "order", "limit", "offset", "hint"),
})  # fmt: skip
_Compared = Callable[[exp.Expr], bool]
"""Whether a node is the column that is looked for."""


def needed_numbers(checked: CheckedSql, column: str, tables: Collection[str]) -> Mapping[str, Spans]:
    """By table, which values of `column` can count, where that is not all of them.

    `tables` are those that have it, as whole numbers; nothing is said of others. A table that is read in several places
    is needed in what any of them needs.
    """
    try:
        return _by_table(checked, column.casefold(), tables)
    except RecursionError:  # nested that deeply, it says nothing
        return {}


def overlap(spans: Spans, least: int, most: int) -> bool:
    return any(start <= most and least <= end for start, end in spans)


def _by_table(checked: CheckedSql, column: str, tables: Collection[str]) -> Mapping[str, Spans]:
    read = [(table, name) for table, name in granted_tables(checked.tree, checked.tables) if name in tables]
    having = {id(table) for table, _ in read}
    needed: dict[str, Spans] = {}
    for table, name in read:
        needed[name] = _united((*needed.get(name, ()), *_needed(table, column, having)))
    return {name: spans for name, spans in needed.items() if spans != ALL}


@dataclass(frozen=True)
class _Sources:
    """What a SELECT reads, by the names that its conditions use."""

    names: Sequence[str]
    having: frozenset[str]
    """Those that are tables with the column."""
    joins: Sequence[exp.Join]
    where: exp.Expr | None

    def alike(self, own: str, column: str) -> frozenset[str]:
        """The table, and those whose column has the same value in every row that the SELECT keeps."""
        if not all(_is_inner(join) for join in self.joins):
            return frozenset({own})
        conditions = (self.where, *(join.args.get("on") for join in self.joins))
        pairs = [pair for condition in conditions for pair in _equal_tables(condition, column) if pair <= self.having]
        alike = {own}
        for _ in pairs:
            alike |= {name for pair in pairs if alike & pair for name in pair}
        return frozenset(alike)


def _needed(table: exp.Table, column: str, having: Collection[int]) -> Spans:
    own, sources = table.alias_or_name.casefold(), _sources(table, having)
    if sources is None or len(set(sources.names)) < len(sources.names):
        return ALL
    alike, alone = sources.alike(own, column), len(sources.names) == 1

    def is_column(node: exp.Expr) -> bool:
        if not isinstance(node, exp.Column) or node.name.casefold() != column:
            return False
        return alone if len(node.parts) == 1 else _table_of(node, column) in alike

    return _true_for(sources.where, is_column)


def _sources(table: exp.Table, having: Collection[int]) -> _Sources | None:
    """Of the SELECT in whose FROM or JOIN the table stands; None where that is less than plain."""
    place = table.parent
    select = place.parent if isinstance(place, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select):
        return None
    joins: list[exp.Join] = select.args.get("joins") or []
    first, where = select.args.get("from_"), select.args.get("where")
    if first is None or (place is not first and not any(place is join for join in joins)):
        return None
    read: list[Any] = [first.this, *(join.this for join in joins), *(select.args.get("laterals") or [])]
    if _has_more(select, PLAIN_SELECT) or any(
        _has_more(one, PLAIN_TABLE) for one in read if isinstance(one, exp.Table)
    ):
        return None
    if any(one.args.get("joins") or one.args.get("laterals") or _renames(one) for one in read):
        return None
    names = [one.alias_or_name.casefold() for one in read]
    tables = frozenset(name for name, one in zip(names, read, strict=True) if id(one) in having)
    return _Sources(names, tables, joins, where.this if where else None)


def _has_more(node: exp.Expr, plain: Collection[str]) -> bool:
    """Than is known to leave a WHERE its meaning."""
    return any(value for name, value in node.args.items() if name not in plain)


def _renames(source: exp.Expr) -> bool:
    """FROM t AS x (a, b): the columns have other names then."""
    alias = source.args.get("alias")
    return isinstance(source, exp.Table) and bool(alias and alias.args.get("columns"))


def _is_inner(join: exp.Join) -> bool:
    plain = not join.side and not join.method and join.kind in {"", "INNER", "CROSS"}
    return plain and not join.args.get("using")


def _equal_tables(condition: exp.Expr | None, column: str) -> Iterator[frozenset[str]]:
    """Pairs of tables of which the condition says that the column is equal."""
    if isinstance(condition, exp.Paren):
        yield from _equal_tables(condition.this, column)
    elif isinstance(condition, exp.And):
        for part in condition.flatten():
            yield from _equal_tables(part, column)
    elif isinstance(condition, exp.EQ):
        left, right = _table_of(condition.left, column), _table_of(condition.right, column)
        if left and right:
            yield frozenset({left, right})


def _table_of(node: exp.Expr, column: str) -> str | None:
    if isinstance(node, exp.Column) and len(node.parts) == QUALIFIED and node.name.casefold() == column:
        return str(node.table).casefold()
    return None


def _true_for(condition: exp.Expr | None, is_column: _Compared) -> Spans:
    """The numbers for which it can be true, and more where that is not certain."""
    if isinstance(condition, exp.Paren):
        return _true_for(condition.this, is_column)
    if isinstance(condition, exp.And):
        return reduce(_shared, (_true_for(part, is_column) for part in condition.flatten()), ALL)
    if isinstance(condition, exp.Or):
        return _united(span for part in condition.flatten() for span in _true_for(part, is_column))
    if isinstance(condition, exp.Between):
        return _between(condition, is_column)
    if isinstance(condition, exp.In):
        return _in(condition, is_column)
    return _compared(condition, is_column) if isinstance(condition, exp.Binary) else ALL


def _between(condition: exp.Between, is_column: _Compared) -> Spans:
    low, high = _number(condition.args["low"]), _number(condition.args["high"])
    if not is_column(condition.this) or low is None or high is None or condition.args.get("symmetric"):
        return ALL
    return ((low, high),) if low <= high else ()


def _in(condition: exp.In, is_column: _Compared) -> Spans:
    given = [_number(one) for one in condition.expressions]
    numbers = [number for number in given if number is not None]
    more = any(value for name, value in condition.args.items() if name not in ("this", "expressions"))
    if not is_column(condition.this) or not numbers or len(numbers) < len(given) or more:
        return ALL
    return _united((number, number) for number in numbers)


def _compared(condition: exp.Binary, is_column: _Compared) -> Spans:
    left, right = condition.left, condition.right
    kind: type[exp.Expr] = type(condition)
    if is_column(right):
        left, right, kind = right, left, TURNED.get(kind, kind)
    number, bounds = _number(right), BOUNDS.get(kind)
    if number is None or bounds is None or not is_column(left):
        return ALL
    return (bounds(number),)


BOUNDS: Final[Mapping[type[exp.Expr], Callable[[int], Span]]] = {
    exp.EQ: lambda number: (number, number),
    exp.NullSafeEQ: lambda number: (number, number),
    exp.LT: lambda number: (float("-inf"), number - 1),
    exp.LTE: lambda number: (float("-inf"), number),
    exp.GT: lambda number: (number + 1, float("inf")),
    exp.GTE: lambda number: (number, float("inf")),
}
TURNED: Final[Mapping[type[exp.Expr], type[exp.Expr]]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}


def _number(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Paren):
        return _number(node.this)
    if isinstance(node, exp.Neg):
        inside = _number(node.this)
        return None if inside is None else -inside
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal():
        return int(node.this)
    return None


def _united(spans: Iterable[Span]) -> Spans:
    """Those that touch or overlap become one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def _shared(some: Spans, others: Spans) -> Spans:
    """In one pass: a list in a query may be long."""
    found: list[Span] = []
    i = j = 0
    while i < len(some) and j < len(others):
        start, end = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start <= end:
            found.append((start, end))
        if some[i][1] <= others[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)
