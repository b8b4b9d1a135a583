"""Which numbers of a column a checked query can need of each table, by its conditions: files without them are not read.

A condition narrows a table if no row that it drops could count: the WHERE of the SELECT that reads the table, the ON of
its inner joins, and what the queries around it ask of a column that passes through unchanged. Parts of a WITH and
subqueries in FROM are seen through where rows can be left out before them as well as after them. A part that is named
in several places is needed in what any of them needs, and so is a table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar

from sqlglot import exp

from tracelake.domain.sql.conditions import true_for
from tracelake.domain.sql.functions import AGGREGATES
from tracelake.domain.sql.gate import CheckedSql, cte_of, granted_tables
from tracelake.domain.sql.number_spans import ALL, Spans, shared, united

PLAIN_SOURCE: Final = frozenset({"this", "alias"})
PLAIN_SELECT: Final = frozenset({
    *("with_", "expressions", "distinct", "from_", "joins", "laterals", "where"),
    *("group", "having", "windows", "qualify", "order", "limit", "offset", "hint"),
})  # fmt: skip
PLAIN_SET: Final = frozenset({"with_", "this", "expression", "distinct", "order"})
PLAIN_GROUP: Final = frozenset({"expressions"})
COUNTS_ROWS: Final = ("windows", "qualify", "limit", "offset")
"""Of a SELECT: what gives other rows if some are left out before it."""
T = TypeVar("T")
Qualified = tuple[str, str]
"""A column by its table and its name, both in small letters."""


def needed_numbers(checked: CheckedSql, column: str, tables: Collection[str]) -> Mapping[str, Spans]:
    """By table, which values of `column` can count, where that is not all of them.

    `tables` are those that have it, as whole numbers; nothing is said of others.
    """
    try:
        return _by_table(checked, column.casefold(), tables)
    except RecursionError:  # too deeply nested: nothing is known
        return {}


def _by_table(checked: CheckedSql, column: str, tables: Collection[str]) -> Mapping[str, Spans]:
    read = [(table, name) for table, name in granted_tables(checked.tree, checked.tables) if name in tables]
    reader = _Reader(column, frozenset(id(table) for table, _ in read), _mentions(checked.tree))
    needed: dict[str, Spans] = {}
    for table, name in read:
        needed[name] = united((*needed.get(name, ()), *reader.needed(table, column)))
    return {name: spans for name, spans in needed.items() if spans != ALL}


def _mentions(tree: exp.Query) -> Mapping[int, Sequence[exp.Table]]:
    """By the part of a WITH: where it is read."""
    found: dict[int, list[exp.Table]] = defaultdict(list)
    for table in tree.find_all(exp.Table):
        part = cte_of(table)
        if part is not None:
            found[id(part)].append(table)
    return found


@dataclass(frozen=True)
class _Sources:
    """What a SELECT reads, by the names that its conditions use."""

    select: exp.Select
    by_name: Mapping[str, exp.Expr]
    joins: Sequence[exp.Join]

    @property
    def alone(self) -> str | None:
        return next(iter(self.by_name)) if len(self.by_name) == 1 else None

    @property
    def conditions(self) -> Sequence[exp.Expr | None]:
        """All of them hold for every row of the result."""
        where = self.select.args.get("where")
        inner = [join.args.get("on") for join in self.joins] if self.all_inner else []
        return [where.this if where else None, *inner]

    @property
    def all_inner(self) -> bool:
        return all(_is_inner(join) for join in self.joins)

    def column(self, node: exp.Expr) -> Qualified | None:
        """Which column a node is, if it is one and that is certain."""
        if not isinstance(node, exp.Column) or node.is_star:
            return None
        table, *more = [part.name.casefold() for part in node.parts]
        if not more:
            return None if self.alone is None else (self.alone, table)
        return (table, more[0]) if len(more) == 1 and table in self.by_name else None


@dataclass(frozen=True)
class _Output:
    """A column of a query's result."""

    name: str
    place: int | None
    """None where a star hides it."""

    def renamed(self, alias: exp.Expr | None) -> str | None:
        """As it is called outside; None: that is not certain."""
        names = [column.name.casefold() for column in alias.args.get("columns") or ()] if alias is not None else []
        if not names:
            return self.name
        return names[self.place] if self.place is not None and self.place < len(names) else None


@dataclass(frozen=True)
class _Reader:
    number: str
    having: frozenset[int]
    """Mentions of tables that have the number."""
    mentions: Mapping[int, Sequence[exp.Table]]
    _kept: dict[Any, Any] = field(default_factory=dict)
    """What was found already: a part of a WITH may be reached in very many ways."""

    def needed(self, source: exp.Expr, column: str) -> Spans:
        """Of a table, a part of a WITH or a subquery in FROM or JOIN."""
        return self._once(("needed", id(source), column), lambda: self._needed(source, column))

    def _needed(self, source: exp.Expr, column: str) -> Spans:
        sources = _sources(source)
        if sources is None:
            return ALL
        alike = self._alike(sources, (source.alias_or_name.casefold(), column))

        def is_column(node: exp.Expr) -> bool:
            return sources.column(node) in alike

        inside = (true_for(condition, is_column) for condition in sources.conditions)
        if not _keeps_rows_apart(sources.select, is_column):
            return shared(inside)
        outputs = _outputs(sources, alike)
        return shared(chain(inside, (self._asked(sources.select, output) for output in outputs)))

    def _alike(self, sources: _Sources, own: Qualified) -> frozenset[Qualified]:
        """The column, and those that have the same value in every row that the SELECT keeps."""
        equal = [pair for condition in sources.conditions for pair in _equal_columns(condition, sources)]
        pairs = [pair for pair in equal if all(self._is_number(sources.by_name[table], name) for table, name in pair)]
        alike = {own}
        for _ in pairs if sources.all_inner else ():
            alike |= {column for pair in pairs if alike & pair for column in pair}
        return frozenset(alike)

    def _asked(self, query: exp.Expr, output: _Output) -> Spans:
        """Which values of a column of its result are asked for by what stands around a query."""
        key = ("asked", id(query), output)
        return self._once(key, lambda: self._asked_by(query.parent, query, output))

    def _asked_by(self, around: exp.Expr | None, query: exp.Expr, output: _Output) -> Spans:
        if isinstance(around, exp.SetOperation):
            return self._asked_of_both(around, output)
        if isinstance(around, exp.CTE) and around.this is query:
            name, read = output.renamed(around.args.get("alias")), self.mentions.get(id(around), ())
            return united(span for table in read for span in self.needed(table, name)) if name and read else ALL
        if not isinstance(around, exp.Subquery) or _has_more(around, PLAIN_SOURCE):
            return ALL
        if isinstance(around.parent, exp.From | exp.Join):
            name = output.renamed(around.args.get("alias"))
            return self.needed(around, name) if name else ALL
        return self._asked(around, output)

    def _asked_of_both(self, both: exp.SetOperation, output: _Output) -> Spans:
        """Of UNION, INTERSECT and EXCEPT: by its place. Were the other side's no whole number, it would be another."""
        if output.place is None or _has_more(both, PLAIN_SET) or not self._is_number_at(both, output.place):
            return ALL
        first = _items(both)[output.place]
        return self._asked(both, _Output(first.alias_or_name.casefold(), output.place))

    def _is_number(self, source: exp.Expr, column: str) -> bool:
        """Whether a column of a relation in FROM or JOIN is the number of a table, unchanged."""
        return self._once(("is", id(source), column), lambda: self._is_number_of(source, column))

    def _is_number_of(self, source: exp.Expr, column: str) -> bool:
        if id(source) in self.having:
            return column == self.number
        made = cte_of(source) if isinstance(source, exp.Table) else source
        if not isinstance(made, exp.CTE | exp.Subquery) or made.args.get("pivots"):
            return False
        names = [column.name.casefold() for column in (made.args["alias"].columns if made.args.get("alias") else ())]
        names = names or [item.alias_or_name.casefold() for item in _items(made.this)]
        return names.count(column) == 1 and self._is_number_at(made.this, names.index(column))

    def _is_number_at(self, query: exp.Expr, place: int) -> bool:
        if isinstance(query, exp.Subquery):
            return self._is_number_at(query.this, place)
        if isinstance(query, exp.SetOperation):
            return self._is_number_at(query.left, place) and self._is_number_at(query.right, place)
        items, first = _items(query), query.args.get("from_")
        sources = _sources(first.this) if first is not None else None
        if sources is None or place >= len(items):
            return False
        column = sources.column(items[place].unalias())
        return column is not None and self._is_number(sources.by_name[column[0]], column[1])

    def _once(self, key: Any, find: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = find()
        found: T = self._kept[key]
        return found


def _sources(source: exp.Expr) -> _Sources | None:
    """Of the SELECT in whose FROM or JOIN it stands; None where that is less than plain."""
    place = source.parent
    select = place.parent if isinstance(place, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or _has_more(select, PLAIN_SELECT):
        return None
    joins: list[exp.Join] = select.args.get("joins") or []
    first = select.args.get("from_")
    if first is None or (place is not first and not any(place is join for join in joins)):
        return None
    read: list[Any] = [first.this, *(join.this for join in joins), *(select.args.get("laterals") or [])]
    if any(_is_more_than_named(part) for part in read):
        return None
    by_name = {part.alias_or_name.casefold(): part for part in read}
    return _Sources(select, by_name, joins) if len(by_name) == len(read) else None


def _is_more_than_named(part: exp.Expr) -> bool:
    """FROM t AS x (a, b): its columns have other names then. PIVOT makes others."""
    if isinstance(part, exp.Table):
        alias = part.args.get("alias")
        return _has_more(part, PLAIN_SOURCE) or bool(alias and alias.args.get("columns"))
    return any(part.args.get(name) for name in ("joins", "laterals", "pivots"))


def _has_more(node: exp.Expr, plain: Collection[str]) -> bool:
    """Than is known to leave the rows of a query as they are."""
    return any(value for name, value in node.args.items() if name not in plain)


def _is_inner(join: exp.Join) -> bool:
    plain = not join.side and not join.method and join.kind in {"", "INNER", "CROSS"}
    return plain and not join.args.get("using")


def _keeps_rows_apart(select: exp.Select, is_column: Callable[[exp.Expr], bool]) -> bool:
    """Whether rows with other values of the column may be left out before it as well as after it."""
    if any(select.args.get(name) for name in COUNTS_ROWS) or select.find(exp.Window):
        return False
    group = select.args.get("group")
    if group is not None:
        return not _has_more(group, PLAIN_GROUP) and any(is_column(key) for key in group.expressions)
    return not select.args.get("having") and not any(_aggregates(item) for item in select.expressions)


def _aggregates(item: exp.Expr) -> bool:
    return any(str(call.this).casefold() in AGGREGATES for call in item.find_all(exp.Anonymous))


def _outputs(sources: _Sources, alike: frozenset[Qualified]) -> Iterator[_Output]:
    """The columns of its result that are one of these, unchanged."""
    items = sources.select.expressions
    hidden = not _items(sources.select)
    for place, item in enumerate(items):
        if item.is_star:
            yield from (_Output(name, None) for name in _starred(item, sources, alike))
        elif sources.column(item.unalias()) in alike:
            yield _Output(item.alias_or_name.casefold(), None if hidden else place)


def _starred(item: exp.Expr, sources: _Sources, alike: frozenset[Qualified]) -> Iterator[str]:
    """With several sources a star may have two columns of one name: then nothing is known."""
    star = item.this if isinstance(item, exp.Column) else item
    table = item.table.casefold() if isinstance(item, exp.Column) else sources.alone
    without = {column.name.casefold() for column in star.args.get("except_") or ()}
    if not any(join.args.get("using") or join.method for join in sources.joins):
        yield from (name for of, name in alike if of == table and name not in without)


def _items(query: exp.Expr) -> Sequence[exp.Expr]:
    """What a query selects, by place, as its first SELECT names it; nothing where stars hide the places."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    items: Sequence[exp.Expr] = query.expressions if isinstance(query, exp.Select) else ()
    plain = all(isinstance(item, exp.Alias | exp.Column) and not item.is_star for item in items)
    return items if plain else ()


def _equal_columns(condition: exp.Expr | None, sources: _Sources) -> Iterator[frozenset[Qualified]]:
    """Pairs of columns that the condition equates."""
    if isinstance(condition, exp.Paren):
        yield from _equal_columns(condition.this, sources)
    elif isinstance(condition, exp.And):
        for part in condition.flatten():
            yield from _equal_columns(part, sources)
    elif isinstance(condition, exp.EQ):
        left, right = sources.column(condition.left), sources.column(condition.right)
        if left and right:
            yield frozenset({left, right})
