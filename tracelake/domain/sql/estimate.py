"""How large the values of an expression can become, found on its tree before anything runs.

Bounds follow the expression from its leaves: texts are as long as they are written, columns are taken to be ordinary,
every function has its rule in `sql/size_rules.py`. A lambda is followed for the elements that it is given, as often as
there are elements; the accumulator of `aggregate` for as long as it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.clock import is_clock_column, is_clock_or_chance
from tracelake.domain.sql.functions import GENERATORS, TIMES, UNIT_FIRST
from tracelake.domain.sql.size_rules import RULED, size_of
from tracelake.domain.sql.sizes import COLUMN, DAY, LISTED, Size, UnknownSize, either, listed

MAX_DEPTH: Final = 100
MAX_LAMBDAS: Final = 5
"""Inside of each other."""
MAX_CASES: Final = 8
"""Inside of each other: Spark writes each twice where it shows its plan, so thirty of them fill its memory."""
MAX_CHAIN: Final = 200
"""Operators in a row, a + b + c: Spark goes into them as deep as they are many. It has another way for AND and OR."""
NESTED: Final = f"the query is nested more than {MAX_DEPTH} deep"
LISTS: Final = frozenset({"collect_list", "collect_set", "array_agg", "listagg", "string_agg"})
HIGHER_ORDER: Final = frozenset({
    *("aggregate", "array_sort", "exists", "filter", "forall", "map_filter", "map_zip_with", "reduce", "transform"),
    *("transform_keys", "transform_values", "zip_with"),
})  # fmt: skip
MADE_BY_BODY: Final = frozenset({"map_zip_with", "transform", "transform_keys", "transform_values", "zip_with"})
SECONDS: Final[Mapping[str, tuple[float, float]]] = {
    "MICROSECOND": (1e-6, 1e-6),
    "MILLISECOND": (1e-3, 1e-3),
    "SECOND": (1, 1),
    "MINUTE": (60, 60),
    "HOUR": (3_600, 3_600),
    "DAY": (DAY, DAY),
    "WEEK": (7 * DAY, 7 * DAY),
    "MONTH": (28 * DAY, 31 * DAY),
    "QUARTER": (90 * DAY, 92 * DAY),
    "YEAR": (365 * DAY, 366 * DAY),
}
"""The shortest and the longest of each unit."""


MOVES: Final = {"date_add": "DAY", "date_sub": "DAY", "add_months": "MONTH"}
READ_TIME: Final = frozenset({"date", "timestamp", "to_date", "to_timestamp", "try_to_date", "try_to_timestamp"})


class TooDeep(Exception):
    """The expression is nested deeper than Spark's stack; the message names the cause."""


@dataclass(frozen=True)
class Names:
    """Resolves the names of an expression and the queries inside of it."""

    column: Callable[[exp.Column], Size]
    star: Callable[[], Size]
    query: Callable[[exp.Expr], Size]
    seen: Callable[[exp.Expr, Size], None]
    """Called with every part and its size."""
    refused: Callable[[exp.Expr, str], Exception]
    rows: float = LISTED
    """How many rows an aggregate may collect."""
    variables: Mapping[str, Size] | None = None
    depth: int = 0
    lambdas: int = 0
    cases: int = 0

    def inside(self) -> Names:
        if self.depth >= MAX_DEPTH:
            raise TooDeep(NESTED)
        return replace(self, depth=self.depth + 1)

    def bound(self, variables: Mapping[str, Size]) -> Names:
        if self.lambdas >= MAX_LAMBDAS:
            raise TooDeep(f"the query has more than {MAX_LAMBDAS} lambdas inside of each other")
        return replace(self, variables={**(self.variables or {}), **variables}, lambdas=self.lambdas + 1)


def estimate(node: exp.Expr, names: Names) -> Size:
    """The size of the expression's value; `names.seen` has been called for it and all of its parts."""
    found = _rule(node)(node, names.inside())
    names.seen(node, found)
    return found


def _rule(node: exp.Expr) -> Callable[[Any, Names], Size]:
    if type(node) in _RULES:
        return _RULES[type(node)]
    if isinstance(node, exp.Query):
        return _query
    return _operators if isinstance(node, exp.Binary) else _all_of


def _query(node: exp.Expr, names: Names) -> Size:
    return names.query(node)


def _inside(node: exp.Expr, names: Names) -> Size:
    return estimate(node.this, names)


def _all_of(node: exp.Expr, names: Names) -> Size:
    """A predicate, a window, a frame: what is in it is looked at, and it is as large as the largest of it."""
    return _with_work(either(parts), parts) if (parts := _parts(node, names)) else Size()


def _parts(node: exp.Expr, names: Names) -> list[Size]:
    left_out = exp.DataType | exp.Var | exp.TableAlias
    return [
        estimate(expression, names) for expression in node.iter_expressions() if not isinstance(expression, left_out)
    ]


def _with_work(made: Size, parts: Sequence[Size], more: float = 0.0) -> Size:
    work = made.work + sum(partition.work for partition in parts) + made.bytes / 1_000 + more
    return replace(made, work=work, weight=1 + sum(partition.weight for partition in parts))


def _literal(node: exp.Literal, _: Names) -> Size:
    if node.is_string:
        return Size(max(1.0, float(len(node.name.encode()))))
    try:
        number = float(node.name.rstrip("BDLSFbdlsf"))
    except ValueError:
        return Size()
    return Size(low=number, high=number)


def _named(node: exp.Identifier | exp.Column, names: Names) -> Size:
    first = node.parts[0].name if isinstance(node, exp.Column) else node.name
    bound = (names.variables or {}).get(first.casefold())
    if bound is not None:
        return replace(bound, work=1.0)
    if not isinstance(node, exp.Column):
        return COLUMN
    if node.is_star:
        return names.star()
    return Size(low=0, high=0, kind="clock") if is_clock_column(node) else replace(names.column(node), work=1.0)


def _star(_: exp.Expr, names: Names) -> Size:
    return names.star()


def _bytes(node: exp.Expr, _: Names) -> Size:
    """X'...'"""
    return Size(1.0 + len(str(node.this)))


def _operators(node: exp.Binary, names: Names) -> Size:
    """A chain of operators, from its left end on: a + b + c is no deeper than a + b."""
    chain: list[exp.Binary] = []
    left: exp.Expr = node
    connects = isinstance(node, exp.Connector)
    while (
        isinstance(left, exp.Binary) and not isinstance(left, exp.Dot) and isinstance(left, exp.Connector) == connects
    ):
        chain.append(left)
        left = left.this
    if len(chain) > MAX_CHAIN and not connects:
        raise TooDeep(f"the query has more than {MAX_CHAIN} operators in a row")
    found = estimate(left, names)
    for operation in reversed(chain):
        right = estimate(operation.expression, names)
        found = _with_work(_operated(operation, found, right), [found, right])
        if operation is not node:
            names.seen(operation, found)
    return found


def _operated(node: exp.Binary, a: Size, b: Size) -> Size:
    if isinstance(node, exp.DPipe):
        return size_of("concat", [a, b], [None, None])
    if isinstance(node, exp.Add | exp.Sub):
        return _moved(a, b, -1 if isinstance(node, exp.Sub) else 1)
    if isinstance(node, exp.Mul):
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        known = all(abs(end) < inf for end in ends)
        kind = "interval" if "interval" in {a.kind, b.kind} else "number"
        return Size(low=min(ends), high=max(ends), kind=kind) if known else Size()
    if isinstance(node, exp.Mod):
        return size_of("mod", [a, b], [None, None])
    return Size()


def _moved(a: Size, b: Size, sign: int) -> Size:
    """A number and another; or a time that an interval moves, or a date so many days."""
    if b.kind in {"time", "clock"} and a.kind not in {"time", "clock"}:
        a, b = b, a
    days = DAY if a.kind in {"time", "clock"} and b.kind == "number" else 1.0
    ends = (sign * b.low * days, sign * b.high * days)
    same = a.kind == b.kind and a.kind in {"time", "clock"}
    return Size(low=a.low + min(ends), high=a.high + max(ends), kind="interval" if same else a.kind)


def _call(node: exp.Anonymous, names: Names) -> Size:
    name = str(node.this).casefold()
    if is_clock_or_chance(node):
        return Size(low=0, high=0, kind="clock") if name not in {"rand", "randn", "random"} else Size()
    if name in HIGHER_ORDER:
        return _higher_order(node, name, names)
    arguments = [estimate(expression, names) for expression in node.expressions]
    texts = [
        expression.name if isinstance(expression, exp.Literal) and expression.is_string else None
        for expression in node.expressions
    ]
    if name in LISTS:
        return _with_work(listed(arguments[0], names.rows) if arguments else Size(), arguments)
    if name in GENERATORS:
        return _with_work((arguments[0].item or arguments[0]).there() if arguments else Size(), arguments)
    try:
        made = _time(name, node, arguments) if name in TIMES - RULED else size_of(name, arguments, texts)
    except UnknownSize:
        raise names.refused(node, name) from None
    return _with_work(made, arguments)


def _higher_order(node: exp.Anonymous, name: str, names: Names) -> Size:
    values = [estimate(expression, names) for expression in node.expressions if not isinstance(expression, exp.Lambda)]
    bodies = [expression for expression in node.expressions if isinstance(expression, exp.Lambda)]
    if not values:
        return Size()
    count = max(1.0, *(value.count for value in values))
    item = either([value.item or value for value in values])
    if name in {"aggregate", "reduce"}:
        return _folded(bodies, values, count, item, names)
    made = [_applied(body, [item] * 3, names) for body in bodies]
    times = count * 16 if name == "array_sort" else count
    work = sum(size.work for size in made) * times
    if name not in MADE_BY_BODY or not made:
        return _with_work(Size() if name in {"exists", "forall"} else values[0].there(), values, work)
    return _with_work(listed(made[0], count), values, work)


def _applied(body: exp.Lambda, arguments: Sequence[Size], names: Names) -> Size:
    variables = {
        expression.name.casefold(): size for expression, size in zip(body.expressions, arguments, strict=False)
    }
    return estimate(body.this, names.inside().bound(variables))


def _folded(bodies: list[exp.Lambda], values: list[Size], count: float, item: Size, names: Names) -> Size:
    """The accumulator, followed for three elements: if it grows by the same each time, so much for each of the rest."""
    state = values[1] if len(values) > 1 else Size()
    grown, work = 0.0, 0.0
    for body in bodies[:1]:
        steps = []
        for _ in range(3):
            following = _applied(body, [state, item], names)
            steps.append(following.bytes - state.bytes)
            state, work = state.at_least(following), max(work, following.work)
        grown = 0.0 if steps[2] <= 0 else inf if steps[2] > steps[1] * 1.001 else steps[2]
    rest = max(0.0, count - 3)
    state = replace(state, bytes=state.bytes + (grown * rest if rest else 0.0))
    names.seen(bodies[0] if bodies else exp.Null(), state)
    for body in bodies[1:]:
        state = _applied(body, [state], names)
    return _with_work(state, values, work * count)


def _time(name: str, node: exp.Anonymous, arguments: list[Size]) -> Size:
    """Times that are known: what `sequence` goes through."""
    match arguments:
        case [_, by, time] if name in UNIT_FIRST:
            return _shifted(time, by, _unit(node.expressions[0].name)) if name.endswith("add") else Size()
        case [time, by] if name in MOVES:
            return _shifted(time, by, SECONDS[MOVES[name]], -1 if name == "date_sub" else 1)
        case [time, unit] if name in {"date_trunc", "trunc"}:
            cut = unit if name == "date_trunc" else time
            return replace(cut, low=cut.low - 366 * DAY) if cut.kind in {"time", "clock"} else Size()
        case [text, *_] if name in READ_TIME:
            return _read_time(node.expressions[0], text)
    return Size()


def _unit(word: str) -> tuple[float, float]:
    return SECONDS.get(word.upper().removesuffix("S"), (inf, inf))


def _shifted(time: Size, by: Size, unit: tuple[float, float], sign: int = 1) -> Size:
    ends = [sign * edge * length for edge in (by.low, by.high) for length in unit]
    if time.kind not in {"time", "clock"} or any(not abs(end) < inf for end in ends):
        return Size()
    return replace(time, low=time.low + min(ends), high=time.high + max(ends))


def _read_time(node: exp.Expr, arguments: Size) -> Size:
    """A text as a time, or a time as one of another kind."""
    if arguments.kind in {"time", "clock"}:
        return replace(arguments, low=arguments.low - DAY)
    if isinstance(node, exp.Literal) and node.is_string:
        try:
            read = datetime.fromisoformat(node.name.strip())
        except ValueError:
            return Size()
        seconds = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
        return Size(low=seconds, high=seconds, kind="time")
    return Size()


def _cast(node: exp.Expr, names: Names) -> Size:
    arguments = estimate(node.this, names)
    to: exp.DataType = node.args["to"]
    if to.is_type("date", "timestamp", "timestampntz", "timestampltz", "timestamptz"):
        return _with_work(_read_time(node.this, arguments), [arguments])
    if to.is_type(*exp.DataType.TEXT_TYPES, "binary"):
        return _with_work(Size(max(64.0, arguments.bytes * (4 if arguments.count else 1))), [arguments])
    if to.is_type(*exp.DataType.NUMERIC_TYPES, "boolean"):
        return _with_work(Size(low=arguments.low, high=arguments.high), [arguments])
    return _with_work(arguments.there(), [arguments])


def _interval(node: exp.Expr, names: Names) -> Size:
    unit = node.args.get("unit")
    arguments = estimate(node.this, names) if node.this is not None else Size()
    if isinstance(node.this, exp.Literal):
        try:
            arguments = Size(low=float(node.this.name), high=float(node.this.name))
        except ValueError:
            arguments = Size()
    ends = [edge * length for edge in (arguments.low, arguments.high) for length in _unit(unit.name if unit else "")]
    if any(not abs(end) < inf for end in ends):
        return Size(kind="interval")
    return Size(low=min(ends), high=max(ends), kind="interval")


def _negative(node: exp.Expr, names: Names) -> Size:
    arguments = estimate(node.this, names)
    return _with_work(Size(low=-arguments.high, high=-arguments.low, kind=arguments.kind), [arguments])


def _element(node: exp.Expr, names: Names) -> Size:
    parts = _parts(node, names)
    return _with_work((parts[0].item or replace(parts[0], count=0)).there(), parts)


def _choice(node: exp.Expr, names: Names) -> Size:
    """One of the results; the conditions are looked at too."""
    if isinstance(node, exp.Case):
        names = replace(names, cases=names.cases + 1)
        if names.cases > MAX_CASES:
            raise TooDeep(f"the query has more than {MAX_CASES} CASEs inside of each other")
    branches = node.args.get("ifs") or [node]
    results = [branch.args.get("true") for branch in branches]
    results.append(node.args.get("default") or node.args.get("false"))
    conditions = [branch.this for branch in branches] + ([node.this] if node.args.get("ifs") and node.this else [])
    tests = [estimate(condition, names) for condition in conditions if condition is not None]
    made = [estimate(result, names) for result in results if result is not None]
    return _with_work(either(made), tests + made)


def _window(node: exp.Expr, names: Names) -> Size:
    """What is outside of it sees a column: an expression is not put in its place."""
    return replace(_all_of(node, names), weight=1.0)


_RULES: Final[Mapping[type[exp.Expr], Callable[[Any, Names], Size]]] = {
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Interval: _interval,
    exp.Neg: _negative,
    exp.Bracket: _element,
    exp.Dot: _inside,
    exp.Alias: _inside,
    exp.Paren: _inside,
    exp.Ordered: _inside,
    exp.PivotAlias: _inside,
    exp.Literal: _literal,
    exp.HexString: _bytes,
    exp.Star: _star,
    exp.Identifier: _named,
    exp.Column: _named,
    exp.Exists: _query,
    exp.Anonymous: _call,
    exp.Case: _choice,
    exp.If: _choice,
    exp.Window: _window,
}
