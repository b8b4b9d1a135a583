"""Made-up statements on which engines are compared: joins, groups, windows, sets, subqueries, orders and limits.

What a statement returns does not depend on which of equal rows comes first, so both engines must return the same.
"""

# ruff: noqa: S608 - statements of SQL are what it makes
from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.cases.made_up_expressions import COLUMNS, MadeUp
from tests.support.cases.parity_tables import COLUMNS as TABLE

TABLES: Final = ("many", "many", "extreme", "extreme", "plain", "nothing")
KINDS: Final = ("whole", "whole", "decimal", "text", "bytes", "date", "time", "bool")
"""Of keys. Doubles are in the expressions."""
JOINS: Final = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL OUTER JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
ONE_SIDED: Final = ("LEFT SEMI JOIN", "LEFT ANTI JOIN")
PAIRS: Final = (
    *(("g", "g2"), ("i", "l2"), ("i", "s2"), ("id", "g2"), ("id", "id2"), ("t", "t2"), ("u", "t2"), ("b", "b2")),
    *(("dt", "dt2"), ("ts", "ts2"), ("ok", "ok2"), ("dec", "small2"), ("big", "l2"), ("dec", "big2"), ("fine", "dec2")),
    *(("dt", "ts2"), ("d", "d2"), ("y", "s2"), ("fine", "big2")),
)
"""What is joined by."""
RIGHT: Final = ", ".join(f"`{name}` AS `{name}2`" for name in TABLE)
TYPES: Final = {
    "decimal": ("DECIMAL(20, 4)", "DECIMAL(38, 0)", "DECIMAL(38, 18)"),
    "whole": ("BIGINT", "INT"),
}
FRAMES: Final = (
    "ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    "",
    "",
)
PEERS: Final = ("rank()", "dense_rank()", "cume_dist()", "percent_rank()", "count(*)")
"""Functions of a window that give equal rows the same."""
SETS: Final = ("UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")


@dataclass(frozen=True)
class Source:
    """What stands in a FROM, and of which columns no two rows have the same values."""

    text: str
    made: MadeUp
    keys: tuple[str, ...]


class MadeUpStatements:
    """Statements of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - the same ones again by the same seed
        self._one = MadeUp(self._random)
        self._two = MadeUp(self._random, _of_both())

    def statement(self) -> str:
        forms = (
            *(self._rows, self._rows, self._grouped, self._grouped, self._distinct, self._windows, self._windows),
            *(self._combined, self._within, self._scalar, self._shared, self._nested, self._whole_table),
        )
        return self._random.choice(forms)()

    def _source(self) -> Source:
        table, drawn = self._random.choice(TABLES), self._random.random()
        if drawn < 0.35:
            return Source(table, self._one, ("id",))
        if drawn < 0.5:
            condition = self._one.of("bool", 1) if drawn < 0.4 else f"id = {self._random.randrange(6)}"
            return Source(f"(SELECT * FROM {table} WHERE {condition}) AS r", self._one, ("id",))
        if drawn < 0.55:
            return Source(f"{table} CROSS JOIN {_renamed('plain')}", self._two, ("id", "id2"))
        kind, other = self._random.choice(JOINS), _renamed(self._random.choice(TABLES))
        joined = f"{table} {kind} {other} ON {self._join_condition()}"
        return Source(joined, self._one, ("id",)) if kind in ONE_SIDED else Source(joined, self._two, ("id", "id2"))

    def _join_condition(self) -> str:
        left, right = self._random.choice(PAIRS)
        operator = "=" if self._random.random() < 0.85 else self._random.choice(("<=>", "<", ">="))
        more = f" AND {self._two.of('bool', 2)}" if self._random.random() < 0.3 else ""
        return f"{left} {operator} {right}{more}"

    def _where(self, made: MadeUp) -> str:
        drawn = self._random.random()
        if drawn < 0.4:
            return ""
        return f" WHERE {made.of('bool', 1)}" if drawn < 0.8 else f" WHERE id = {self._random.randrange(6)}"

    def _rows(self) -> str:
        source = self._source()
        values = [source.made.row() for _ in range(self._random.randrange(1, 4))]
        columns = [*source.keys, *(f"{value} AS c{at}" for at, value in enumerate(values))]
        text = f"SELECT {', '.join(columns)} FROM {source.text}{self._where(source.made)}"
        return text + self._order("c0", source.keys)

    def _order(self, first: str, keys: tuple[str, ...]) -> str:
        """An order in which no two rows are equal, and perhaps a limit."""
        drawn = self._random.random()
        if drawn < 0.4:
            return ""
        way = self._random.choice(("", " DESC", " NULLS LAST", " DESC NULLS FIRST", " ASC"))
        limit = self._random.choice(("", "", " LIMIT 3", " LIMIT 2 OFFSET 1", " LIMIT 0"))
        return f" ORDER BY {', '.join((first + way, *keys))}{limit}"

    def _whole_table(self) -> str:
        table = self._random.choice(TABLES)
        star = self._random.choice(("*", "* EXCEPT (d, ts)", "r.*, i + 1 AS more", "id, st, m, ss, f, ntz, a"))
        if self._random.random() < 0.2:
            return f"SELECT count(*), MAX(r.i), min(T), sum(g), avg(S) FROM {table} AS r{self._where(self._one)}"
        return f"SELECT {star} FROM {table} AS r{self._where(self._one)} ORDER BY id"

    def _grouped(self) -> str:
        source = self._source()
        keys = [self._key(source.made) for _ in range(self._random.randrange(1, 3))]
        names = [f"c{at}" for at in range(len(keys))]
        sums = [f"{source.made.aggregate()} AS a{at}" for at in range(2)]
        columns = ", ".join([*(f"{key} AS {name}" for key, name in zip(keys, names, strict=True)), *sums])
        places = ", ".join(str(at) for at in range(1, len(keys) + 1))
        listed = ", ".join(keys)
        forms = (listed, listed, places, f"ROLLUP ({listed})", f"CUBE ({listed})", f"GROUPING SETS (({listed}), ())")
        having = f" HAVING {self._having(source.made)}" if self._random.random() < 0.25 else ""
        text = f"SELECT {columns} FROM {source.text}{self._where(source.made)}"
        return f"{text} GROUP BY {self._random.choice(forms)}{having}"

    def _having(self, made: MadeUp) -> str:
        return self._random.choice(
            (f"count(*) > 1 AND max({made.of('whole', 2)}) > 0", f"{made.aggregate()} IS NOT NULL")
        )

    def _key(self, made: MadeUp) -> str:
        kind = self._random.choice(KINDS)
        return made.of(kind, 2) if self._random.random() < 0.5 else self._random.choice(COLUMNS[kind])

    def _distinct(self) -> str:
        source = self._source()
        columns = [f"{self._key(source.made)} AS c{at}" for at in range(2)]
        order = self._random.choice(("", " ORDER BY c0, c1", " ORDER BY c0 DESC, c1 LIMIT 3"))
        return f"SELECT DISTINCT {', '.join(columns)} FROM {source.text}{self._where(source.made)}{order}"

    def _windows(self) -> str:
        source = self._source()
        columns = [f"{self._over(source)} AS c{at}" for at in range(2)]
        return f"SELECT {', '.join((*source.keys, *columns))} FROM {source.text}{self._where(source.made)}"

    def _over(self, source: Source) -> str:
        partition = f"PARTITION BY {self._key(source.made)} " if self._random.random() < 0.7 else ""
        way = self._random.choice(("", " DESC", " NULLS LAST"))
        order = source.made.row() if self._random.random() < 0.7 else "g"
        if self._random.random() < 0.25:
            return f"{self._random.choice(PEERS)} OVER ({partition}ORDER BY {order}{way})"
        call = source.made.window()
        framed = call.partition("(")[0] in {"sum", "avg", "min", "max", "count", "first_value", "last_value"}
        frame = f" {self._random.choice(FRAMES)}" if framed else ""
        return f"{call} OVER ({partition}ORDER BY {', '.join((order + way, *source.keys))}{frame})"

    def _combined(self) -> str:
        kinds = [self._random.choice(KINDS) for _ in range(self._random.randrange(1, 3))]
        types = [self._random.choice(TYPES.get(kind, ("",))) for kind in kinds]
        first, second, third = (self._arm(kinds, types) for _ in range(3))
        operator = self._random.choice(SETS)
        if self._random.random() < 0.25:
            return f"({first} {operator} {second}) {self._random.choice(SETS)} {third}"
        return f"{first} {operator} {second}"

    def _arm(self, kinds: list[str], types: list[str]) -> str:
        source = self._source()
        values = [source.made.of(kind, 2) for kind in kinds]
        written = [f"CAST({value} AS {type_})" if type_ else value for value, type_ in zip(values, types, strict=True)]
        columns = ", ".join(f"{value} AS c{at}" for at, value in enumerate(written))
        return f"SELECT {columns} FROM {source.text}{self._where(source.made)}"

    def _within(self) -> str:
        """Conditions by subqueries."""
        kind, table = self._random.choice(KINDS), self._random.choice(TABLES)
        other = self._random.choice(TABLES)
        key = self._random.choice(COLUMNS[kind])
        negated = self._random.choice(("", "NOT "))
        left, right = self._random.choice(PAIRS)
        conditions = (
            f"{key} {negated}IN (SELECT {key} FROM {other}{self._where(self._one)})",
            f"{negated}EXISTS (SELECT 1 AS one FROM {_renamed(other)} WHERE {left} = {right})",
            f"{negated}EXISTS (SELECT 1 AS one FROM {_renamed(other)} WHERE {left} = {right} AND {right} IS NOT NULL)",
        )
        more = f" {self._random.choice(('AND', 'OR'))} {self._one.of('bool', 2)}" if self._random.random() < 0.3 else ""
        return f"SELECT id, {self._one.row()} AS c0 FROM {table} WHERE {self._random.choice(conditions)}{more}"

    def _scalar(self) -> str:
        table, other = self._random.choice(TABLES), self._random.choice(TABLES)
        left, right = self._random.choice(PAIRS)
        call = self._random.choice(("max(l2)", "count(*)", "sum(i2)", "avg(dec2)", "min(t2)", "count(DISTINCT g2)"))
        inner = self._random.choice(
            (
                f"(SELECT {self._one.aggregate()} FROM {other}{self._where(self._one)})",
                f"(SELECT {call} FROM {_renamed(other)} WHERE {left} = {right})",
            )
        )
        if self._random.random() < 0.5:
            return f"SELECT id, {inner} AS c0 FROM {table}{self._where(self._one)}"
        return f"SELECT id FROM {table} WHERE {self._one.of('whole', 2)} >= (SELECT max(g) FROM {other})"

    def _shared(self) -> str:
        """One subquery that is used twice."""
        kind = self._random.choice(("JOIN", "LEFT JOIN", "FULL OUTER JOIN"))
        first = f"WITH c AS ({self._grouped()}) "
        drawn = self._random.random()
        if drawn < 0.4:
            return f"{first}SELECT a.c0 AS x, a.a0 AS y, b.a1 AS z FROM c a {kind} c b ON a.c0 = b.c0"
        if drawn < 0.7:
            return f"{first}SELECT c0, a0 FROM c WHERE a0 IS NOT NULL UNION ALL SELECT c0, a0 FROM c"
        return f"{first}SELECT count(*) AS n, count(DISTINCT c0) AS m, max(c0) AS x, min(c0) AS y FROM c"

    def _nested(self) -> str:
        """Columns of a subquery, of which the types are known by Spark's rules only."""
        kinds = [self._random.choice(KINDS) for _ in range(2)]
        values = ", ".join(f"{self._one.of(kind, 1)} AS c{at}" for at, kind in enumerate(kinds))
        columns: dict[str, tuple[str, ...]] = dict.fromkeys(COLUMNS, ("c0", "c1"))
        columns |= {kind: (f"c{at}",) for at, kind in enumerate(kinds)}
        columns |= {"whole": ("id", *(f"c{at}" for at, kind in enumerate(kinds) if kind == "whole")), "int": ("g",)}
        made = MadeUp(self._random, columns)
        inner = f"(SELECT id, g, {values} FROM {self._random.choice(TABLES)}) AS q"
        values = ", ".join((f"max({made.of(kinds[0], 1)}) AS x", f"count(DISTINCT {made.of(kinds[1], 1)}) AS y"))
        outer = (
            f"SELECT id, {made.of(kinds[0])} AS x, {made.of(kinds[1])} AS y FROM {inner}",
            f"SELECT g, {values} FROM {inner} GROUP BY g",
        )
        return self._random.choice(outer)


def _renamed(table: str) -> str:
    return f"(SELECT {RIGHT} FROM {table}) AS other"


def _of_both() -> Mapping[str, tuple[str, ...]]:
    return {kind: (*names, *(f"{name}2" for name in names)) for kind, names in COLUMNS.items()}
