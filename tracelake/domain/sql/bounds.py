"""Refuses queries that make much of little, before they reach a Spark that others use too.

What can be known from the text alone is bounded here: the size of a value, the rows that generators and joins of
constants make, the steps for one row, the parts of the plan once every WITH stands where it is named. The rest (rows of
tables, what columns really hold) is left to the limits of time and memory at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from tracelake.domain.sql.estimate import HIGHER_ORDER, MAX_DEPTH, NESTED, Names, TooDeep, estimate
from tracelake.domain.sql.functions import GENERATORS
from tracelake.domain.sql.refusal import refusal
from tracelake.domain.sql.relations import (
    ANY,
    STAR,
    AnyColumns,
    RelationSize,
    ScopeSizes,
    aggregates,
    all_columns,
    column_size,
    groupings,
    joined,
    multiplied,
    side_by_side,
    starred,
    widest,
)
from tracelake.domain.sql.sizes import COLUMN, LISTED, Size

MAX_VALUE_BYTES: Final = 4 * 1024 * 1024
MAX_ELEMENTS: Final = 100_000
MAX_GENERATED_ROWS: Final = 5_000_000
"""Of one row of the tables: what generators, VALUES and joins between them multiply to."""
MAX_WORK: Final = 20_000_000.0
"""Steps for one row of the tables; a second or two."""
MAX_ARMS: Final = 100
"""SELECTs of the plan. 200 arms of a UNION take Spark 10 s to plan, 500 a minute."""
MAX_JOINS: Final = 50
MAX_PLAN: Final = 40_000
"""Parts of the plan."""
MAX_WEIGHT: Final = 5_000
"""Parts of one expression after its columns are inlined, as Spark does."""
MAX_INNER: Final = 5
"""Queries inside of expressions of queries inside of expressions: 20 deep, Spark plans for minutes."""
MAX_DISTINCTS: Final = 50
"""Spark makes as many rows of each row as there are count(DISTINCT ...): 60 take it 2 s to plan, 200 take 18 s."""
MAX_LOOKS: Final = 30_000
"""At parts of the query, by this code: what is in the lambda of an aggregate is looked at three times."""
MAX_GROUPINGS: Final = 256
"""What CUBE, ROLLUP and GROUPING SETS make together. A CUBE of 8; one of 10 takes Spark 7 s, of 12 half a minute."""
NOTED: Final = 64 * 1024
"""Values above it are added up: those of one row are there at once."""
FEWER: Final = "ask for less at once, or make it a job"


@dataclass
class _Bounds:
    max_bytes: int
    seen: set[int] = field(default_factory=set)
    """The calls that were looked at."""

    looks: int = 0

    def refuse_size(self, node: exp.Expr, size: Size) -> None:
        self.seen.add(id(node))
        self.looks += 1
        if self.looks > MAX_LOOKS:
            raise refusal(node, "the query has too many parts inside of lambdas", FEWER)
        if size.bytes > self.max_bytes:
            raise refusal(node, f"{_named(node)} may make a value of {_said(size.bytes)}; {self._most}", FEWER)
        if size.count > MAX_ELEMENTS:
            raise refusal(node, f"{_named(node)} may make more than {MAX_ELEMENTS:,} elements", FEWER)
        if size.work > MAX_WORK:
            raise refusal(node, f"{_named(node)} takes more than {MAX_WORK:,.0f} steps for one row", FEWER)
        if size.weight > MAX_WEIGHT:
            raise refusal(
                node, f"an expression has more than {MAX_WEIGHT:,} parts, with those of the columns it names", FEWER
            )

    @property
    def _most(self) -> str:
        return f"at most {_said(self.max_bytes)} are taken"

    def refuse_plan(self, node: exp.Expr, found: RelationSize) -> None:
        if found.rows > MAX_GENERATED_ROWS:
            raise refusal(node, f"the query makes more than {MAX_GENERATED_ROWS:,} rows of one", FEWER)
        if found.arms > MAX_ARMS:
            raise refusal(
                node, f"the query has more than {MAX_ARMS} SELECTs, each WITH counted where it is used", FEWER
            )
        if found.joins > MAX_JOINS:
            raise refusal(node, f"the query has more than {MAX_JOINS} joins, each WITH counted where it is used", FEWER)
        if found.inner > MAX_INNER:
            raise refusal(node, f"queries stand inside of expressions more than {MAX_INNER} deep", FEWER)
        if found.held > 2 * self.max_bytes:
            raise refusal(node, f"the large values of one row are more than {_said(2 * self.max_bytes)}", FEWER)
        if found.parts > MAX_PLAN:
            raise refusal(
                node, f"the query has more than {MAX_PLAN:,} parts, each WITH counted where it is used", FEWER
            )


def refuse_unbounded(tree: exp.Query, max_value_bytes: int) -> int:
    """InvalidSql, with the place and the limit, if some part of the query may be too much; else the bytes of a row."""
    walk = _Walk(_Bounds(max_value_bytes))
    try:
        found = walk.query(tree, {})
        walk.rest(tree)
    except TooDeep as error:
        raise refusal(tree, str(error), "name its parts in a WITH") from None
    except RecursionError:
        raise refusal(tree, NESTED, "name its parts in a WITH") from None
    return round(sum(size.bytes for size in (found.columns or {}).values()))


class _Walk:
    """One walk through a query and the queries inside of it."""

    def __init__(self, bounds: _Bounds) -> None:
        self._bounds = bounds
        self._depth = 0
        self._around: list[ScopeSizes] = []
        """The sources of the queries around this one, which its expressions may name too."""

    def query(self, tree: exp.Expr, scope: ScopeSizes) -> RelationSize:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooDeep(NESTED)
        scope = self._with(tree, scope)
        if isinstance(tree, exp.Subquery):
            found = self._renamed(self._piped(tree, self.query(tree.this, scope), scope), tree.args.get("alias"))
        elif isinstance(tree, exp.SetOperation):
            found = self._arms(tree, scope)
        elif isinstance(tree, exp.Values):
            found = self._values(tree, scope)
        elif isinstance(tree, exp.Table):
            found = self._source(tree, scope)
        else:
            found = self._select(tree, scope)
        self._depth -= 1
        self._bounds.refuse_plan(tree, found)
        return found

    def rest(self, tree: exp.Query) -> None:
        """Calls in a place of which nothing is known above: what stands there is bounded too."""
        names = self._names({}, {})
        for call in tree.find_all(exp.Anonymous):
            if id(call) not in self._bounds.seen and not isinstance(call.parent, exp.Hint):
                estimate(call, names)

    def _with(self, tree: exp.Expr, scope: ScopeSizes) -> ScopeSizes:
        sizes = tree.args.get("with_")
        for cte in sizes.expressions if sizes else ():
            made = self._renamed(self.query(cte.this, scope), cte.args.get("alias"))
            scope = {**scope, cte.alias.casefold(): made}
        return scope

    def _arms(self, tree: exp.SetOperation, scope: ScopeSizes) -> RelationSize:
        """From the last arm to the first: a UNION of many is a tree as deep as they are many."""
        arms: list[RelationSize] = []
        left: exp.Expr = tree
        while isinstance(left, exp.SetOperation):
            scope = scope if left is tree else self._with(left, scope)
            arms.append(self.query(left.expression, scope))
            self._bounds.refuse_plan(left, joined(arms))
            left = left.left
        arms.append(self.query(left, scope))
        found = joined(arms)
        found.columns = side_by_side([arm.columns or {STAR: COLUMN} for arm in reversed(arms)])
        self._clauses(tree, {"": found}, scope, found)
        return self._limited(tree, found)

    def _values(self, tree: exp.Values, scope: ScopeSizes) -> RelationSize:
        names = self._names({}, scope)
        rows = [[estimate(value, names) for value in getattr(row, "expressions", [row])] for row in tree.expressions]
        width = max((len(row) for row in rows), default=0)
        columns = {f"col{n + 1}": widest([row[n] for row in rows if n < len(row)]) for n in range(width)}
        made = RelationSize(columns, float(max(1, len(rows))), tables=False, parts=float(sum(map(len, rows))))
        return self._renamed(made, tree.args.get("alias"))

    def _select(self, tree: exp.Expr, scope: ScopeSizes) -> RelationSize:
        sources = dict(self._sources(tree, scope))
        found = multiplied(sources.values())
        for join in tree.args.get("joins") or ():
            found.joins += 1
            if join.args.get("on"):
                self._refuse_work(join, estimate(join.args["on"], self._names(sources, scope, found)).work, found)
        columns = self._columns(tree, sources, scope, found)
        self._clauses(tree, {**sources, "": RelationSize(columns)}, scope, found)
        found.arms = max(1.0, found.arms)
        found.columns = columns
        if _is_total(tree):
            found.rows = 1.0
        return self._limited(tree, found)

    def _sources(self, tree: exp.Expr, scope: ScopeSizes) -> Iterator[tuple[str, RelationSize]]:
        sizes = tree.args.get("from_")
        tables = [sizes.this] if sizes else []
        tables += [join.this for join in tree.args.get("joins") or ()]
        seen: dict[str, RelationSize] = {}
        for number, table in enumerate(tables):
            name = table.alias_or_name.casefold()
            name = f"{name} {number}" if name in seen or not name else name  # two of one name are two
            seen[name] = self._source(table, scope)
            yield name, seen[name]
        nested = [lateral for table in tables for lateral in table.args.get("laterals") or ()]
        for number, lateral in enumerate([*nested, *(tree.args.get("laterals") or ())]):
            alias = lateral.args.get("alias")
            made = self._generated(lateral.this, self._names(seen, scope), alias.columns if alias else ())
            self._refuse_work(lateral, made.work, multiplied(seen.values()))
            seen[f" view {number}"] = made
            yield f" view {number}", made

    def _source(self, table: exp.Expr, scope: ScopeSizes) -> RelationSize:
        if isinstance(table, exp.Table):
            found = scope.get(table.name.casefold()) or RelationSize(arms=0, parts=4)
            found = self._piped(table, replace(found), scope)
            more = [self._source(join.this, scope) for join in table.args.get("joins") or ()]
            if more:
                found = multiplied([found, *more], joins=float(len(more)))
            return self._renamed(found, table.args.get("alias"))
        return self.query(table, scope)

    def _piped(self, table: exp.Expr, found: RelationSize, scope: ScopeSizes) -> RelationSize:
        """After PIVOT and UNPIVOT, of which the columns are not followed by name."""
        for pivot in table.args.get("pivots") or ():
            names = self._names({"": found}, scope, found)
            sizes = [
                estimate(expression, names)
                for expression in pivot.expressions
                if not isinstance(expression, exp.Identifier)
            ]
            values = max(1, sum(len(field.expressions) for field in pivot.fields))
            known = list((found.columns or {"": COLUMN}).values()) + sizes
            found.columns = AnyColumns(widest(known))
            found.rows *= values if pivot.unpivot else 1
            found.parts += values * max(1, len(pivot.expressions))
        return found

    def _columns(self, tree: exp.Expr, sources: ScopeSizes, scope: ScopeSizes, found: RelationSize) -> dict[str, Size]:
        """Of the result; an earlier one may be named in a later one."""
        columns: dict[str, Size] = {}
        names = self._names({**sources, " so far": RelationSize(columns)}, scope, found)
        for number, expression in enumerate(tree.expressions):
            if expression.is_star:
                columns.update(starred(expression, sources))
                continue
            inner = expression.unalias() if isinstance(expression, exp.Alias | exp.Aliases) else expression
            if isinstance(inner, exp.Anonymous) and str(inner.this).casefold() in GENERATORS:
                sizes = expression.args.get("alias")
                made = self._generated(
                    inner, names, [sizes] if sizes is not None else expression.args.get("aliases") or ()
                )
                self._refuse_work(expression, made.work, found)
                found.rows *= made.rows
                columns.update(made.columns or {})
                continue
            size = estimate(expression, names)
            barrier = any(isinstance(part, exp.Window) or aggregates(part) for part in expression.walk())
            size = replace(size, weight=1.0) if barrier else size
            name = expression.alias_or_name.casefold() or f" {number}"
            columns[name] = widest([size, columns[name]]) if name in columns else size
        self._refuse_work(tree, sum(size.work for size in columns.values()), found)
        found.held += sum(size.bytes for size in columns.values() if size.bytes > NOTED)
        return AnyColumns(widest(list(columns.values()))) if ANY in columns else columns

    def _clauses(self, tree: exp.Expr, sources: ScopeSizes, scope: ScopeSizes, found: RelationSize) -> None:
        names = self._names(sources, scope, found)
        work = 0.0
        for clause in ("where", "having", "qualify", "group", "order", "limit", "offset"):
            sizes = tree.args.get(clause)
            for expression in sizes.iter_expressions() if sizes else ():
                work += estimate(expression, names).work
        for window in tree.args.get("windows") or ():
            estimate(window, names)
        self._refuse_work(tree, work, found)
        group = tree.args.get("group")
        if group and (sets := groupings(group)) > MAX_GROUPINGS:
            raise refusal(group, f"the query groups in {sets:,.0f} ways; {MAX_GROUPINGS} are taken", FEWER)
        parts = list(_own_parts(tree))
        if sum(isinstance(partition, exp.Distinct) for partition in parts) > MAX_DISTINCTS:
            raise refusal(tree, f"the query has more than {MAX_DISTINCTS} DISTINCTs in one SELECT", FEWER)
        found.parts += len(parts)

    def _refuse_work(self, tree: exp.Expr, work: float, found: RelationSize) -> None:
        if work * found.rows > MAX_WORK:
            raise refusal(tree, f"the query takes more than {MAX_WORK:,.0f} steps for one row", FEWER)

    def _generated(self, call: exp.Expr, names: Names, aliases: Iterable[exp.Expr]) -> RelationSize:
        """The rows of explode and the like."""
        arguments = list(call.expressions)
        sizes = [estimate(argument, names) for argument in arguments]
        if str(call.this).casefold() == "stack":
            rows = sizes[0].high if sizes else 1.0
            if not rows <= MAX_GENERATED_ROWS:
                raise refusal(call, f"stack() takes a plain number of rows, at most {MAX_GENERATED_ROWS:,}", FEWER)
            item = widest(sizes)
        else:
            rows = max(1.0, sizes[0].count) if sizes else 1.0
            item = (sizes[0].item or sizes[0]) if sizes else Size()
        item = replace(item, weight=1.0, work=1.0)
        columns = {alias.name.casefold(): item for alias in aliases}
        columns = columns or {"col": item, "pos": Size(), "key": item, "value": item}
        return RelationSize(columns, rows, tables=False, parts=2, work=sum(size.work for size in sizes))

    def _names(self, sources: ScopeSizes, scope: ScopeSizes, found: RelationSize | None = None) -> Names:
        def column(node: exp.Column) -> Size:
            return column_size(node, [sources, *self._around])

        def query(node: exp.Expr) -> Size:
            self._around.append(sources)
            made = self.query(node.this if isinstance(node, exp.Exists) else node, scope)
            self._around.pop()
            if found is not None:
                found.parts += made.parts
                found.arms += made.arms
                found.joins += made.joins
                found.held += made.held
                found.inner = max(found.inner, made.inner + 1)
            return widest(list((made.columns or {"": COLUMN}).values()))

        def refused(node: exp.Expr, name: str) -> Exception:
            return refusal(node, f"what {name}() makes may be of any size", _HINTS.get(name, _HINTS[""]))

        def star() -> Size:
            return all_columns(sources)

        return Names(column, star, query, self._bounds.refuse_size, refused, found.listed if found else LISTED)

    def _limited(self, tree: exp.Expr, found: RelationSize) -> RelationSize:
        limit = tree.args.get("limit")
        number = limit.expression if isinstance(limit, exp.Limit) else None
        if isinstance(number, exp.Literal) and number.name.isdecimal() and not found.tables:
            self._bounds.refuse_plan(tree, found)
            found.rows = min(found.rows, float(number.name))
        return found

    def _renamed(self, found: RelationSize, alias: exp.TableAlias | None) -> RelationSize:
        names = [column.name.casefold() for column in alias.columns] if alias else []
        if not names or found.columns is None:
            return found
        sizes = list(found.columns.values())
        if len(names) != len(sizes):
            sizes = [widest(sizes)] * len(names)
        return replace(found, columns=dict(zip(names, sizes, strict=True)))


_HINTS: Final = {
    "sequence": "name both ends and the step: sequence(DATE '2024-01-01', DATE '2024-12-31', INTERVAL 1 DAY)",
    "format_string": "write the format as a plain text",
    "printf": "write the format as a plain text",
    "approx_count_distinct": "an error of 0.01 or more is taken",
    "window": "a row may be in at most 50 windows: write both lengths as texts, '1 hour', '15 minutes'",
    "": "say how much at most: repeat(text, least(n, 100))",
}


def _is_total(tree: exp.Expr) -> bool:
    """Whether it makes one row of all: an aggregate without GROUP BY."""
    calls = (call for part in tree.expressions for call in part.find_all(exp.Anonymous))
    return not tree.args.get("group") and any(
        aggregates(call) and call.find_ancestor(exp.Window, exp.Select) is tree for call in calls
    )


def _own_parts(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of a SELECT without those of the queries inside of it."""
    return tree.walk(prune=lambda node: node is not tree and isinstance(node, exp.Query))


def _said(size: float) -> str:
    return f"{size:,.0f} bytes" if size < 2**50 else "more bytes than can be counted"


def _named(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return f"{str(node.this).casefold()}()"
    inside = node.find(exp.Anonymous)
    name = str(inside.this).casefold() if inside is not None else ""
    return f"{name}()" if name in HIGHER_ORDER else "a part of the query"
