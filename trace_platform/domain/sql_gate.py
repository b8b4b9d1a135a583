"""The first of two lines that stand before SQL: it becomes a tree, and only what is known to be harmless may be in it.

One SELECT. Every kind of node and every function must be on a list; every table is one that was granted. What runs is
rendered from the checked tree, never the text that came; and the rendered text, read again, must give the same tree, so
that nothing changes its meaning on the way. The second line is `spark/plan_check.py`.

Functions are kept as they are written (the parser of sqlglot would translate many of them, and not always faithfully),
so the list in `sql_words.py` names what Spark will run.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from trace_platform.domain.sql_clock import is_clock_or_chance, is_clock_word, is_lasting
from trace_platform.domain.sql_words import (
    FUNCTIONS,
    GENERATORS,
    REPEATERS,
    SESSION_WORDS,
    TIMES,
)
from trace_platform.domain.suggest import closest
from trace_platform.errors import InvalidSql

MAX_CHARS: Final = 100_000
MAX_NODES: Final = 20_000
MAX_REPEATS: Final = 10_000
SAME_AGAIN: Final = "what is stored must be the same when made again"
KEPT: Final = 512
"""Checked queries that are remembered: a job's query is the same for all of its tasks."""

_NODES: Final[frozenset[type[Any]]] = frozenset({
    # queries
    *(exp.Select, exp.From, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Join),
    *(exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Table, exp.Union, exp.Intersect, exp.Except, exp.Values),
    *(exp.Distinct, exp.Lateral, exp.Cube, exp.Rollup, exp.GroupingSets, exp.Tuple, exp.Alias, exp.Star, exp.Column),
    *(exp.Identifier, exp.Paren, exp.Window, exp.WindowSpec, exp.Filter, exp.WithinGroup, exp.IgnoreNulls),
    *(exp.RespectNulls, exp.Exists),
    # values
    *(exp.Literal, exp.Boolean, exp.Null, exp.HexString, exp.Interval, exp.IntervalSpan, exp.Var),
    *(exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Anonymous, exp.Lambda, exp.Bracket),
    *(exp.Dot, exp.Case, exp.If, exp.Extract),
    # operators
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Is, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Any, exp.All),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot),
})  # fmt: skip


class _Parser(SparkParser):
    """Spark's grammar, with functions left alone: whatever is called becomes a call of that very name."""

    STRICT_CAST = True
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF", "ANY")
    }


class _Dialect(Spark):
    Parser = _Parser


_DIALECT: Final = _Dialect()


@dataclass(frozen=True)
class CheckedSql:
    """A query that passed. `tables` are those of the granted names that it reads."""

    tree: exp.Query
    tables: frozenset[str]
    lasting: bool = False
    """It asks neither a clock nor chance, so of the same rows it always makes the same."""
    read_once: frozenset[str] = frozenset()
    """Those of the tables that one place of it reads; none where WITH parts may be read in several."""

    def render(self, relations: Mapping[str, str]) -> str:
        """As text for Spark, each granted name standing for one of its relations."""
        tree = self.tree.copy()
        for table, name in granted_tables(tree, self.tables):
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
            table.set("this", exp.to_identifier(relations[name], quoted=True))
        return _text(tree)


def check_sql(text: str, tables: Collection[str], *, deterministic: bool = True, bounded: bool = True) -> CheckedSql:
    """The query as a checked tree, or InvalidSql. `tables` are all the names that it may read.

    `deterministic` refuses what gives other rows each time. `bounded` refuses what makes much of little unless it says
    how much: for questions from outside; a job's author has other means to fill a disk.
    """
    return _check(text, frozenset(tables), deterministic, bounded)


def table_names(text: str) -> frozenset[str]:
    """The tables that a query speaks of, WITH parts aside, in small letters: to be looked up before the check."""
    return frozenset(
        table.name.casefold() for table in _parsed(text).find_all(exp.Table) if table.name and not _names_cte(table)
    )


@lru_cache(maxsize=KEPT)
def _parsed(text: str) -> exp.Query:
    """Never changed after this: a copy is."""
    return _plain_strings(_parse(text))


@lru_cache(maxsize=KEPT)
def _check(text: str, tables: frozenset[str], deterministic: bool, bounded: bool) -> CheckedSql:
    tree = _parsed(text)
    rules = _Rules(tables, deterministic, bounded)
    for count, node in enumerate(tree.walk()):
        if count > MAX_NODES:
            raise InvalidSql(f"the query has more than {MAX_NODES} parts", hint="split it over several jobs")
        rules.check(node)
    _refuse_other_meaning(tree)
    read = Counter(name for _, name in granted_tables(tree, tables))
    once = () if tree.find(exp.CTE) else (name for name, count in read.items() if count == 1)
    return CheckedSql(tree, frozenset(read), is_lasting(tree), frozenset(once))


def granted_tables(tree: exp.Query, tables: Collection[str]) -> Iterator[tuple[exp.Table, str]]:
    """Every mention of a granted table, which a CTE's is not, and its name as granted."""
    by_folded = {name.casefold(): name for name in tables}
    for table in list(tree.find_all(exp.Table)):
        if not _names_cte(table):
            yield table, by_folded[table.name.casefold()]


def _parse(text: str) -> exp.Query:
    _refuse_text(text)
    try:
        found = _DIALECT.parse(text)
    except SqlglotError as wrong:
        raise _not_sql(wrong) from None
    except RecursionError:
        raise InvalidSql("the query is nested too deeply", hint="name its parts in a WITH") from None
    statements = [one for one in found if one is not None]
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


def _not_sql(wrong: SqlglotError) -> InvalidSql:
    found: list[dict[str, Any]] = getattr(wrong, "errors", None) or [{}]
    said = str(found[0].get("description") or "it cannot be read").rstrip(".")
    if said.startswith("Required keyword"):  # it names classes of the parser
        said = "something is missing here"
    return InvalidSql(
        f"this is not SQL as Spark reads it: {said}", line=found[0].get("line"), column=found[0].get("col")
    )


def _plain_strings(tree: exp.Query) -> exp.Query:
    for raw in list(tree.find_all(exp.RawString)):
        raw.replace(exp.Literal.string(raw.this))
    return tree


def _refuse_other_meaning(tree: exp.Query) -> None:
    """What is rendered must be read as what was checked."""
    try:
        same = _DIALECT.parse(_text(tree))
    except (SqlglotError, RecursionError):
        same = []
    if len(same) != 1 or same[0] != tree:
        raise InvalidSql(
            "the query can be read in two ways", hint="set parentheses around nested operators, and plain literals"
        )


def _text(tree: exp.Query) -> str:
    return _DIALECT.generate(tree, comments=False, normalize_functions=False, copy=False)


@dataclass(frozen=True)
class _Rules:
    tables: frozenset[str]
    deterministic: bool
    bounded: bool

    def check(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Concat):  # the parser's name for two texts side by side, and for '' inside of one
            raise _refusal(node, "two texts stand side by side", r"write \' for a quote inside a text")
        if type(node) not in _NODES:
            raise _refusal(node, f"{_said(node)} is not allowed in a query")
        rule = _BY_TYPE.get(type(node))
        if rule is not None:
            rule(self, node)

    def _table(self, table: exp.Table) -> None:
        given = {name for name, value in table.args.items() if value}
        if given & {"db", "catalog"}:
            raise _refusal(table, "a table is named by one word, without a dot", "use the names of the inputs")
        if not isinstance(table.this, exp.Identifier):
            raise _refusal(table, "a function cannot stand in FROM", "name an input")
        if given - {"this", "alias", "joins", "laterals"}:
            raise _refusal(table, "a table in FROM has a name and an alias, nothing more")
        known = {name.casefold() for name in self.tables}
        if not _names_cte(table) and table.name.casefold() not in known:
            raise _refusal(table, "there is no input of this name", closest(table.name, self.tables), "unknown_table")

    def _cte(self, cte: exp.CTE) -> None:
        folded = cte.alias.casefold()
        if folded in {name.casefold() for name in self.tables}:
            raise _refusal(cte, "a WITH has the name of an input", "rename it")
        others = [one for one in cte.parent.expressions if one is not cte]  # type: ignore[union-attr]
        if any(one.alias.casefold() == folded for one in others):
            raise _refusal(cte, "two parts of a WITH have one name", "rename one")

    def _with(self, given: exp.With) -> None:
        if given.args.get("recursive"):
            raise _refusal(given, "WITH RECURSIVE is not taken")

    def _column(self, column: exp.Column) -> None:
        names = [part.name.casefold() for part in column.parts]
        if "_metadata" in names or names[:2] == ["system", "session"]:
            raise _refusal(column, "there are no columns but those of the inputs")
        if len(names) == 1 and names[0] in SESSION_WORDS and not column.this.args.get("quoted"):
            raise _refusal(
                column, f"{names[0]} could be a function", f"for a column of that name, write the table: t.{names[0]}"
            )

    def _call(self, call: exp.Anonymous) -> None:
        if not isinstance(call.this, str):
            raise _refusal(call, "the name of a function is not quoted")
        name = call.this.casefold()
        if is_clock_or_chance(call):
            if self.deterministic:
                raise _refusal(call, f"{name}() gives another result each time", SAME_AGAIN)
        elif name not in FUNCTIONS and name != "unix_timestamp":
            raise _refusal(call, f"there is no function {name[:64]}()", closest(name, FUNCTIONS), "unknown_function")
        if name in TIMES:
            self._times(call, call.expressions)
        if self.bounded:
            self._bounds(call, name)

    def _cast(self, cast: exp.Cast) -> None:
        if cast.to.is_type("date", "timestamp", "timestampntz", "timestamptz", "timestampltz"):
            self._times(cast, [cast.this])

    def _times(self, node: exp.Expr, texts: Iterable[exp.Expr]) -> None:
        """Where Spark makes a time of a text, some words mean the clock."""
        for text in texts if self.deterministic else ():
            if isinstance(text, exp.Literal) and is_clock_word(text.name):
                raise _refusal(node, f"{text.name!r} is another time each time", SAME_AGAIN)

    def _bounds(self, call: exp.Anonymous, name: str) -> None:
        if name in REPEATERS:
            at = REPEATERS[name]
            if len(call.expressions) > at and not _small(call.expressions[at]):
                raise _refusal(call, f"{name}() takes a plain number up to {MAX_REPEATS} here")
        if name == "sequence" and not _short_sequence(call.expressions):
            raise _refusal(call, f"sequence() takes plain numbers here, at most {MAX_REPEATS} of them")

    def _lateral(self, lateral: exp.Lateral) -> None:
        call = lateral.this
        name = call.this if isinstance(call, exp.Anonymous) else None
        if not lateral.args.get("view") or not isinstance(name, str) or name.casefold() not in GENERATORS:
            raise _refusal(lateral, "LATERAL VIEW takes a function that makes rows", closest("explode", GENERATORS))

    def _limit(self, limit: exp.Limit) -> None:
        ordered = limit.parent is not None and limit.parent.args.get("order")
        if self.deterministic and not ordered:
            raise _refusal(limit, "LIMIT without ORDER BY takes any rows", "say which by ORDER BY")


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
}


def _names_cte(table: exp.Table) -> bool:
    """Whether a WITH around the table defines its name: one of those before it, if it stands in a WITH itself."""
    name = table.name.casefold()
    below: exp.Expr = table
    above = table.parent
    while above is not None:
        if isinstance(above, exp.With):
            earlier = above.expressions[: above.expressions.index(below)]
            if any(one.alias.casefold() == name for one in earlier):
                return True
            above = above.parent  # the query that it belongs to: its other parts are not visible from here
            assert above is not None  # noqa: S101 - a WITH belongs to a query
        elif (given := above.args.get("with_")) is not None and any(
            one.alias.casefold() == name for one in given.expressions
        ):
            return True
        below, above = above, above.parent
    return False


def _small(node: exp.Expr) -> bool:
    number = _number(node)
    return number is not None and abs(number) <= MAX_REPEATS


def _short_sequence(arguments: list[exp.Expr]) -> bool:
    numbers = [_number(one) for one in arguments]
    if None in numbers:
        return False
    start, stop, *rest = [number for number in (*numbers, 0, 0) if number is not None][: max(2, len(numbers))]
    step = abs(rest[0]) if rest else 1
    return step > 0 and abs(stop - start) // step < MAX_REPEATS


def _number(node: exp.Expr) -> int | None:
    if isinstance(node, exp.Neg):
        inside = _number(node.this)
        return None if inside is None else -inside
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal():
        return int(node.this)
    return None


def _refusal(node: exp.Expr, message: str, hint: str | None = None, code: str = "refused_sql") -> InvalidSql:
    line, column = place_of(node)
    return InvalidSql(message, line=line, column=column, hint=hint, reason=code)


def place_of(node: exp.Expr) -> tuple[int | None, int | None]:
    """Where the node begins; else where the first thing in it does, or what is around it."""
    for near in (*node.walk(bfs=False), *_ancestors(node)):
        meta = near.meta if near._meta else {}  # noqa: SLF001 - asking for `meta` makes one
        if "line" in meta and "start" in meta:
            length = meta["end"] - meta["start"]
            return meta["line"], max(1, meta["col"] - length)
    return None, None


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _said(node: exp.Expr) -> str:
    name = "".join(f" {letter}" if letter.isupper() else letter for letter in type(node).__name__).strip()
    return name.upper()
