"""The first of two lines that stand before SQL: it becomes a tree, and only what is known to be harmless may be in it.

One SELECT. Every kind of node and every function must be on a list; every table is one that was granted. What runs is
rendered from the checked tree, never the text that came; and the rendered text, read again, must give the same tree, so
that nothing changes its meaning on the way. The second line is `spark/plan_check.py`.

Functions are kept as they are written (`sql/dialect.py`), so the list in `sql/functions.py` names what Spark will run.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tracelake.domain.sql.bounds import MAX_VALUE_BYTES, refuse_unbounded
from tracelake.domain.sql.clock import is_clock_column, is_clock_or_chance, is_clock_word, is_lasting
from tracelake.domain.sql.dialect import parse, render
from tracelake.domain.sql.functions import (
    FUNCTIONS,
    GENERATORS,
    JOIN_HINTS,
    SESSION_WORDS,
    TIMES,
)
from tracelake.domain.sql.refusal import refusal
from tracelake.domain.text.suggest import closest
from tracelake.errors import InvalidSql

MAX_CHARS: Final = 100_000
MAX_NODES: Final = 20_000
SAME_AGAIN: Final = "what is stored must be the same when made again"
KEPT: Final = 512
"""Checked queries that are remembered: a job's query is the same for all of its tasks."""

_NODES: Final[frozenset[type[Any]]] = frozenset({
    # queries
    *(exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Join),
    *(exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Table, exp.Union, exp.Intersect, exp.Except, exp.Values),
    *(exp.Distinct, exp.Lateral, exp.Cube, exp.Rollup, exp.GroupingSets, exp.Tuple, exp.Alias, exp.Star, exp.Column),
    *(exp.Identifier, exp.Paren, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls),
    *(exp.RespectNulls, exp.Exists, exp.Qualify, exp.Pivot, exp.PivotAlias, exp.Hint),
    # values
    *(exp.Literal, exp.Boolean, exp.Null, exp.HexString, exp.Interval, exp.IntervalSpan, exp.Var),
    *(exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Anonymous, exp.Lambda, exp.Bracket),
    *(exp.Dot, exp.Case, exp.If, exp.Extract, exp.Trim),
    # operators
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Is, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Any, exp.All),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift),
    exp.BitwiseRightShift,
})  # fmt: skip


@dataclass(frozen=True)
class CheckedSql:
    """A query that passed. `tables` are those of the granted names that it reads."""

    tree: exp.Query
    tables: frozenset[str]
    lasting: bool = False
    """It asks neither a clock nor chance, so of the same rows it always makes the same."""
    read_once: frozenset[str] = frozenset()
    """Those of the tables that one place of it reads; none where WITH parts may be read in several."""
    row_bytes: int = 0
    """The size of a result row, estimated from the text; 0 for a job's."""

    def render(self, relations: Mapping[str, str]) -> str:
        """As text for Spark, each granted name standing for one of its relations."""
        tree = self.tree.copy()
        for table, name in granted_tables(tree, self.tables):
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(relations[name], quoted=True))
        return render(tree)


def check_sql(
    text: str,
    tables: Collection[str],
    *,
    deterministic: bool = True,
    bounded: bool = True,
    max_value_bytes: int = MAX_VALUE_BYTES,
    near: Collection[str] = (),
) -> CheckedSql:
    """The query as a checked tree, or InvalidSql. `tables` are all the names that it may read.

    `deterministic` refuses what gives other rows each time. `bounded` refuses what makes much of little, as
    `sql/bounds.py` says: for queries from outside; a job's author has other means to fill a disk. `near` are further
    names that the caller may read, to suggest one of them for a table that there is not.
    """
    return _check(text, frozenset(tables), deterministic, max_value_bytes if bounded else None, frozenset(near))


def table_names(text: str) -> frozenset[str]:
    """The tables that a query speaks of, WITH parts aside, in small letters: to be looked up before the check."""
    return frozenset(
        table.name.casefold() for table in _parsed(text).find_all(exp.Table) if table.name and cte_of(table) is None
    )


@lru_cache(maxsize=KEPT)
def _parsed(text: str) -> exp.Query:
    """Never changed after this: a copy is."""
    return _parse(text)


@lru_cache(maxsize=KEPT)
def _check(
    text: str, tables: frozenset[str], deterministic: bool, max_value_bytes: int | None, near: frozenset[str]
) -> CheckedSql:
    tree = _parsed(text)
    rules = _Rules(tables, deterministic, near)
    for count, node in enumerate(tree.walk()):
        if count > MAX_NODES:
            raise InvalidSql(f"the query has more than {MAX_NODES} parts", hint="split it over several jobs")
        rules.check(node)
    row_bytes = 0
    if max_value_bytes is not None:
        row_bytes = refuse_unbounded(tree, max_value_bytes)
    _refuse_other_meaning(tree)
    if max_value_bytes is not None:
        tree = _without_hints(tree) if tree.find(exp.Hint) else tree
    read = Counter(name for _, name in granted_tables(tree, tables))
    once = () if tree.find(exp.CTE) else (name for name, count in read.items() if count == 1)
    return CheckedSql(tree, frozenset(read), is_lasting(tree), frozenset(once), row_bytes)


def granted_tables(tree: exp.Query, tables: Collection[str]) -> Iterator[tuple[exp.Table, str]]:
    """Every mention of a granted table, which a CTE's is not, and its name as granted."""
    by_folded = {name.casefold(): name for name in tables}
    for table in list(tree.find_all(exp.Table)):
        if cte_of(table) is None:
            yield table, by_folded[table.name.casefold()]


def _parse(text: str) -> exp.Query:
    _refuse_text(text)
    try:
        statements = parse(text)
    except SqlglotError as error:
        raise _not_sql(error) from None
    except RecursionError:
        raise InvalidSql("the query is nested too deeply", hint="name its parts in a WITH") from None
    if len(statements) != 1:
        raise InvalidSql(f"one SELECT is needed, and there are {len(statements)} statements")
    (tree,) = statements
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise InvalidSql("only a SELECT is run", line=1, column=1, hint="begin with SELECT or WITH")
    return tree


def _refuse_text(text: str) -> None:
    if len(text) > MAX_CHARS:
        raise InvalidSql(f"the query has {len(text)} characters; at most {MAX_CHARS} are taken")
    for at, letter in enumerate(text):
        if letter >= " " and letter < "\x7f":
            continue
        if letter not in "\n\r\t" and unicodedata.category(letter) in {"Cc", "Cf", "Cs"}:
            before = text[:at]
            raise InvalidSql(
                f"the query holds a character that cannot be seen (U+{ord(letter):04X})",
                line=before.count("\n") + 1,
                column=at - before.rfind("\n"),
                hint="type it again",
            )
    if "|>" in text:
        raise InvalidSql("pipes (|>) are not taken", hint="write a SELECT")


def _not_sql(error: SqlglotError) -> InvalidSql:
    found: list[dict[str, Any]] = getattr(error, "errors", None) or [{}]
    problem = str(found[0].get("description") or "it cannot be read").rstrip(".")
    if problem.startswith("Required keyword"):  # it names classes of the parser
        problem = "something is missing here"
    return InvalidSql(
        f"this is not SQL as Spark reads it: {problem}", line=found[0].get("line"), column=found[0].get("col")
    )


def _refuse_other_meaning(tree: exp.Query) -> None:
    """What is rendered must be read as what was checked."""
    try:
        same = parse(render(tree))
    except (SqlglotError, RecursionError):
        same = []
    if len(same) != 1 or same[0] != tree:
        raise InvalidSql(
            "the query can be read in two ways", hint="set parentheses around nested operators, and plain literals"
        )


def _without_hints(tree: exp.Query) -> exp.Query:
    """A hint may have a large table held in memory, which the queries of others share: Spark decides by sizes."""
    tree = tree.copy()
    for hint in list(tree.find_all(exp.Hint)):
        hint.pop()
    return tree


@dataclass(frozen=True)
class _Rules:
    tables: frozenset[str]
    deterministic: bool
    near: frozenset[str] = frozenset()

    def check(self, node: exp.Expr) -> None:
        if type(node) not in _NODES:
            raise refusal(node, f"{_said(node)} is not allowed in a query")
        rule = _BY_TYPE.get(type(node))
        if rule is not None:
            rule(self, node)

    def _table(self, table: exp.Table) -> None:
        given = {name for name, value in table.args.items() if value}
        if given & {"db", "catalog"}:
            raise refusal(table, "a table is named by one word, without a dot", "use the names of the inputs")
        if not isinstance(table.this, exp.Identifier):
            raise refusal(table, "a function cannot be in FROM", "name an input")
        if given - {"this", "alias", "joins", "laterals", "pivots"}:
            raise refusal(table, "a table in FROM has a name and an alias, nothing more")
        known = {name.casefold() for name in self.tables}
        if cte_of(table) is None and table.name.casefold() not in known:
            reason = f"there is no table named {table.name[:128]!r}"
            raise refusal(table, reason, closest(table.name, self.tables | self.near), "unknown_table")

    def _cte(self, cte: exp.CTE) -> None:
        folded = cte.alias.casefold()
        if folded in {name.casefold() for name in self.tables}:
            raise refusal(cte, "a WITH has the name of an input", "rename it")
        others = [expression for expression in cte.parent.expressions if expression is not cte]  # type: ignore[union-attr]
        if any(other.alias.casefold() == folded for other in others):
            raise refusal(cte, "two parts of a WITH have one name", "rename one")

    def _with(self, given: exp.With) -> None:
        if given.args.get("recursive"):
            raise refusal(given, "WITH RECURSIVE is not taken")

    def _column(self, column: exp.Column) -> None:
        names = [part.name.casefold() for part in column.parts]
        if "_metadata" in names or names[:2] == ["system", "session"]:
            raise refusal(column, "there are no columns but those of the inputs")
        if is_clock_column(column) and not self.deterministic:
            return
        if len(names) == 1 and names[0] in SESSION_WORDS and not column.this.args.get("quoted"):
            raise refusal(
                column, f"{names[0]} could be a function", f"for a column of that name, write the table: t.{names[0]}"
            )

    def _call(self, call: exp.Anonymous) -> None:
        if not isinstance(call.this, str):
            raise refusal(call, "the name of a function is not quoted")
        name = call.this.casefold()
        if isinstance(call.parent, exp.Hint):
            return  # one of the known ones, which `_hint` has seen
        if is_clock_or_chance(call):
            if self.deterministic:
                raise refusal(call, f"{name}() gives another result each time", SAME_AGAIN)
        elif name not in FUNCTIONS and name != "unix_timestamp":
            raise refusal(call, f"there is no function {name[:64]}()", closest(name, FUNCTIONS), "unknown_function")
        if name in TIMES:
            self._times(call, call.expressions)

    def _cast(self, cast: exp.Cast) -> None:
        if cast.to.is_type("date", "timestamp", "timestampntz", "timestamptz", "timestampltz"):
            self._times(cast, [cast.this])

    def _times(self, node: exp.Expr, texts: Iterable[exp.Expr]) -> None:
        """Where Spark makes a time of a text, some words mean the clock."""
        for text in texts if self.deterministic else ():
            if isinstance(text, exp.Literal) and is_clock_word(text.name):
                raise refusal(node, f"{text.name!r} is another time each time", SAME_AGAIN)

    def _lateral(self, lateral: exp.Lateral) -> None:
        call = lateral.this
        name = call.this if isinstance(call, exp.Anonymous) else None
        if not lateral.args.get("view") or not isinstance(name, str) or name.casefold() not in GENERATORS:
            raise refusal(lateral, "LATERAL VIEW takes a function that makes rows", closest("explode", GENERATORS))

    def _hint(self, hint: exp.Hint) -> None:
        for expression in hint.expressions:
            known = isinstance(expression, exp.Anonymous) and str(expression.this).casefold() in JOIN_HINTS
            if not known or not all(isinstance(table, exp.Column) for table in expression.expressions):
                raise refusal(hint, "this hint is not known", f"hints about joins are: {', '.join(sorted(JOIN_HINTS))}")

    def _pivot(self, pivot: exp.Pivot) -> None:
        plain = [isinstance(field, exp.In) and bool(field.expressions) for field in pivot.fields] == [True]
        if not plain or any(pivot.args.get(name) for name in ("this", "using", "group", "into", "default_on_null")):
            raise refusal(pivot, "PIVOT takes aggregates FOR a column IN a list of values")

    def _distinct(self, distinct: exp.Distinct) -> None:
        if distinct.args.get("on"):
            raise refusal(distinct, "DISTINCT ON is not taken", "QUALIFY row_number() OVER (...) = 1 picks one row")

    def _star(self, star: exp.Star) -> None:
        if star.args.get("replace") or star.args.get("rename"):
            raise refusal(star, "* takes EXCEPT alone", "name the other columns: * EXCEPT (a), a + 1 AS a")

    def _union(self, union: exp.Union) -> None:
        if union.args.get("by_name"):
            raise refusal(union, "UNION BY NAME is not taken", "name the columns on both sides, in one order")

    def _limit(self, limit: exp.Limit) -> None:
        ordered = limit.parent is not None and limit.parent.args.get("order")
        if self.deterministic and not ordered:
            raise refusal(limit, "LIMIT without ORDER BY takes any rows", "say which by ORDER BY")


_BY_TYPE: Final[Mapping[type[Any], Any]] = {
    exp.Table: _Rules._table,  # noqa: SLF001 - its own
    exp.CTE: _Rules._cte,  # noqa: SLF001
    exp.With: _Rules._with,  # noqa: SLF001
    exp.Column: _Rules._column,  # noqa: SLF001
    exp.Anonymous: _Rules._call,  # noqa: SLF001
    exp.Cast: _Rules._cast,  # noqa: SLF001
    exp.TryCast: _Rules._cast,  # noqa: SLF001
    exp.Lateral: _Rules._lateral,  # noqa: SLF001
    exp.Limit: _Rules._limit,  # noqa: SLF001
    exp.Hint: _Rules._hint,  # noqa: SLF001
    exp.Pivot: _Rules._pivot,  # noqa: SLF001
    exp.Distinct: _Rules._distinct,  # noqa: SLF001
    exp.Star: _Rules._star,  # noqa: SLF001
    exp.Union: _Rules._union,  # noqa: SLF001
}


def cte_of(table: exp.Table) -> exp.CTE | None:
    """The part of an enclosing WITH with the table's name; for a table in a WITH, one of the parts before it."""
    name = table.name.casefold()
    below: exp.Expr = table
    above = table.parent
    while above is not None:
        visible: list[exp.CTE] = above.args["with_"].expressions if above.args.get("with_") else []
        if isinstance(above, exp.With):
            visible = above.expressions[: above.expressions.index(below)]
            above = above.parent  # the query that it belongs to: its other parts are not visible from here
            assert above is not None  # noqa: S101 - a WITH belongs to a query
        found = next((part for part in visible if part.alias.casefold() == name), None)
        if found is not None:
            return found
        below, above = above, above.parent
    return None


def _said(node: exp.Expr) -> str:
    name = "".join(f" {letter}" if letter.isupper() else letter for letter in type(node).__name__).strip()
    return name.upper()
