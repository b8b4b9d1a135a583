"""The queries of a comparison, over tables `a` and `b`. Pure: text in, text out.

Columns are renamed `c0`, `c1`, ..., so that no name of a user's can be that of a flag; key columns come first.
"""
# ruff: noqa: S608 - names of columns are quoted, and the gate parses each text before it is run

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tracelake.domain.ranges import Range
from tracelake.wire.task.markers import NUMBER, ColumnEntry

NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
UNEQUAL: Final = ("map<", "variant", "interval")
"""Types of which Spark compares no values, as a part of others too."""


def is_number(column: ColumnEntry) -> bool:
    return column.type.startswith(NUMBERS) and not column.type.startswith("interval")


def is_comparable(column: ColumnEntry) -> bool:
    return not any(kind in column.type for kind in UNEQUAL)


@dataclass(frozen=True)
class DiffStatements:
    columns: Sequence[ColumnEntry]
    """Those that are compared; the first `keys` of them are the key."""
    keys: int
    span: Range | None

    def totals(self, table: str) -> str:
        """Rows, distinct keys, and the sum of each column of numbers, as doubles: they cannot overflow."""
        sums = [f"sum(CAST(c{n} AS DOUBLE)) AS s{n}" for n, item in enumerate(self.columns) if is_number(item)]
        return f"SELECT {', '.join(['count(*) AS n', *sums])} FROM ({self._rows(table)}) r"

    def keys_of(self, table: str) -> str:
        names = self._names(range(self.keys))
        grouped = f"SELECT count(*) AS n FROM ({self._rows(table)}) r GROUP BY {names}"
        return f"SELECT count(*) AS n FROM ({grouped}) k WHERE n > 1"

    def counts(self) -> str:
        """Only a, only b; by key also the changed ones, and how many values a column has equal; else the same."""
        if not self.keys:
            missing = "sum(greatest(in_a - in_b, 0)) AS only_a, sum(greatest(in_b - in_a, 0)) AS only_b"
            return f"SELECT {missing}, sum(least(in_a, in_b)) AS same FROM ({self._counted()}) g"
        columns = range(len(self.columns))
        equal = (f"count_if(x.side = 1 AND y.side = 1 AND x.c{n} <=> y.c{n}) AS e{n}" for n in columns)
        wanted = (
            "count_if(y.side IS NULL) AS only_a",
            "count_if(x.side IS NULL) AS only_b",
            f"count_if({self._changed()}) AS changed",
            *equal,
        )
        return f"SELECT {', '.join(wanted)} FROM {self._joined()}"

    def differing(self, limit: int) -> str:
        columns = range(len(self.columns))
        if not self.keys:
            wanted = f"in_a, in_b, {self._names(columns)}"
            rows = f"SELECT {wanted} FROM ({self._counted()}) g WHERE in_a <> in_b"
            return f"{rows} ORDER BY {self._names(columns)} LIMIT {limit}"
        values = [f"{side}.c{n} AS {side}{n}" for side in ("x", "y") for n in columns]
        missing = "x.side IS NULL OR y.side IS NULL"
        order = ", ".join(f"coalesce(x.c{n}, y.c{n})" for n in range(self.keys))
        rows = f"SELECT {', '.join(['x.side AS in_a', 'y.side AS in_b', *values])} FROM {self._joined()}"
        return f"{rows} WHERE {missing} OR {self._changed()} ORDER BY {order} LIMIT {limit}"

    def _rows(self, table: str) -> str:
        columns = ", ".join(f"{quoted(item.name)} AS c{n}" for n, item in enumerate(self.columns))
        where = ""
        if self.span is not None:
            start, end = self.span.edges
            where = f" WHERE {quoted(NUMBER)} BETWEEN {start} AND {end}"
        return f"SELECT 1 AS side, {columns} FROM {table}{where}"

    def _joined(self) -> str:
        matched = " AND ".join(f"x.c{n} <=> y.c{n}" for n in range(self.keys))
        return f"({self._rows('a')}) x FULL OUTER JOIN ({self._rows('b')}) y ON {matched}"

    def _changed(self) -> str:
        values = range(self.keys, len(self.columns))
        different = " OR ".join(f"NOT x.c{n} <=> y.c{n}" for n in values) or "false"
        return f"(x.side = 1 AND y.side = 1 AND ({different}))"

    def _counted(self) -> str:
        """How often each row is in `a` and in `b`."""
        names = self._names(range(len(self.columns)))
        both = " UNION ALL ".join(self._flagged())
        return f"SELECT sum(is_a) AS in_a, sum(is_b) AS in_b, {names} FROM ({both}) u GROUP BY {names}"

    def _flagged(self) -> Iterator[str]:
        names = self._names(range(len(self.columns)))
        for table, flags in (("a", "1 AS is_a, 0 AS is_b"), ("b", "0 AS is_a, 1 AS is_b")):
            yield f"SELECT {flags}, {names} FROM ({self._rows(table)}) r"

    def _names(self, numbers: range) -> str:
        return ", ".join(f"c{n}" for n in numbers)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
