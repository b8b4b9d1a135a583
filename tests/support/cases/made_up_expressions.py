"""Made-up expressions and statements on which engines are compared: any mix of what Sail may run, and more.

They follow Spark's rules of types, so that Spark accepts most of them. What Sail does not run, Spark does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from tests.support.cases.engine_parity import GROUP, ROW, WHOLE, WINDOW
from tracelake.domain.sql.functions import AGGREGATES, WINDOWS
from tracelake.query.sail.translate.calls import TRUNCATED
from tracelake.query.sail.translate.same_functions import FIRST, IN_ORDER, SAME

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "whole": ("i", "l", "g", "id", "s", "y"),
    "int": ("i", "g", "s", "y"),
    "decimal": ("dec", "big", "dec", "small", "fine"),
    "double": ("d",),
    "text": ("t", "u"),
    "bytes": ("b",),
    "date": ("dt",),
    "time": ("ts",),
    "bool": ("ok",),
}
LITERALS: Final[Mapping[str, tuple[str, ...]]] = {
    "whole": ("0", "1", "-1", "7", "100", "2147483647", "3000000000", "-2147483647", "9223372036854775807"),
    "int": ("0", "1", "2", "-2", "5"),
    "decimal": (
        "0.5",
        "1.0",
        "-2.25",
        "0.001",
        "100.00",
        "12345678901234567890",
        "99999999999999999999.9999",
        f"{'9' * 38}",
        f"0.{'0' * 37}1",
    ),
    "double": ("1e0", "0e0", "-2.5e0", "1e300", "1e-300", "3.3e0", "CAST('NaN' AS DOUBLE)", "1.1D"),
    "text": ("'a'", "''", "','", "'0x1F'", "'é'", "'%'", "'ǆİß'", "'😀 x'", f"'{2**256 - 1}'"),
    "bytes": ("X''", "X'00FF'", f"X'{'FF' * 32}'"),
    "date": ("DATE '2024-02-29'", "DATE '1970-01-01'", "DATE '0001-01-01'", "DATE '9999-12-31'"),
    "time": (
        "TIMESTAMP '2024-03-10 02:30:00'",
        "TIMESTAMP '1969-12-31 23:59:59'",
        "TIMESTAMP '0001-01-01 00:00:00'",
        "TIMESTAMP '9999-12-31 23:59:59'",
    ),
    "bool": ("TRUE", "FALSE", "NULL"),
}
NUMBERS: Final = ("whole", "decimal", "double")
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "whole": ("BIGINT", "INT", "SMALLINT"),
    "decimal": ("DECIMAL(20, 4)", "DECIMAL(38, 0)", "DECIMAL(10, 2)", "DECIMAL(38, 18)"),
    "double": ("DOUBLE",),
    "text": ("STRING",),
    "date": ("DATE",),
    "time": ("TIMESTAMP",),
    "bool": ("BOOLEAN",),
    "bytes": ("BINARY",),
}
KINDS: Final = ("whole", "decimal", "double", "text", "bytes", "date", "time", "bool")
RESULT_KINDS: Final = {
    **dict.fromkeys(("int", "bigint"), "whole"),
    "double": "double",
    "string": "text",
    "boolean": "bool",
    "binary": "bytes",
    "date": "date",
    "timestamp": "time",
}
REWRITTEN: Final = {
    **dict.fromkeys(("unix_seconds(time)", "unix_timestamp(time)", "unix_millis(time)", "bigint(time)"), "bigint"),
    **dict.fromkeys(("floor(whole)", "mod(whole 7)", "pmod(whole 7)", "timestampdiff(DAY time time)"), "bigint"),
    **dict.fromkeys(("datediff(date date)", "date_part('year' time)", "date_part('week' time)"), "int"),
    **dict.fromkeys(("power(10 int)", "try_divide(whole whole)", "try_divide(double double)"), "double"),
    **dict.fromkeys(("date_format(time 'HH:mm')", "date_format(date 'yyyy-MM')", "date_format(time 'EEEE')"), "string"),
    **{f"date_trunc('{unit}' time)": "timestamp" for unit in TRUNCATED},
    **dict.fromkeys(("timestamp_seconds(whole)", "timestampadd(HOUR -3 time)"), "timestamp"),
    **dict.fromkeys(("equal_null(text text)", "equal_null(decimal whole)", "equal_null(time time)"), "boolean"),
    **dict.fromkeys(("count_if(bool)", "lag(whole)"), "bigint"),
    **dict.fromkeys(("lag(text n)", "lead(decimal)", "lag(whole 1 -1)", "lead(double n)"), FIRST),
}
"""Functions that are written in other words for Sail, as `SAME`."""
DEEPEST: Final = 3


class MadeUp:
    """Expressions of one seed."""

    def __init__(self, source: random.Random, columns: Mapping[str, tuple[str, ...]] = COLUMNS) -> None:
        """`columns` are those of the tables, by kind."""
        self._random = source
        self._columns = columns
        self._by_kind: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._aggregates: list[str] = []
        self._windows: list[str] = []
        for signature, result in (SAME | REWRITTEN).items():
            self._sort(signature, result)

    def statement(self, count: int) -> tuple[str, list[str]]:
        """Return a SELECT with a place for its columns and for a table, and its columns."""
        single = f"SELECT {{columns}} FROM {{table}} WHERE id = {self._random.randrange(6)}"  # noqa: S608
        use = self._random.choice(
            (ROW, single, single, GROUP, WHOLE, WINDOW, WINDOW)
        )  # of one row, less exceeds its type
        made = self.row if use in {ROW, single} else self.window if use == WINDOW else self.aggregate
        return use, [made() for _ in range(count)]

    def row(self) -> str:
        return self.of(self._random.choice(KINDS))

    def aggregate(self) -> str:
        call = self._call(self._aggregates, 2) if self._random.random() < 0.4 else self._sum()
        if self._random.random() < 0.2:
            call += f" FILTER (WHERE {self.of('bool', 2)})"
        return call

    def window(self) -> str:
        return self._call(self._aggregates + self._windows * 3, 2) if self._random.random() < 0.6 else self._sum()

    def of(self, kind: str, depth: int = 0) -> str:
        """Return an expression of a kind."""
        if depth >= DEEPEST or self._random.random() < 0.15:
            return self._leaf(kind)
        return self._random.choice(self._ways(kind))(kind, depth + 1)

    def _ways(self, kind: str) -> list[Callable[[str, int], str]]:
        if kind == "int":
            return [lambda *_: self._leaf("int")]
        ways: list[Callable[[str, int], str]] = [self._choose, self._convert]
        ways += [self._function] * (3 if self._by_kind[kind] else 0)
        if kind in NUMBERS:
            ways += [self._arithmetic] * 4 + [self._negative]
        if kind == "bool":
            ways += [self._comparison] * 4 + [self._logic] * 2
        if kind in {"date", "time"}:
            ways += [self._moved]
        return ways

    def _leaf(self, kind: str) -> str:
        pool = self._columns if self._random.random() < 0.75 else LITERALS
        return self._random.choice(pool[kind])

    def _arithmetic(self, kind: str, depth: int) -> str:
        operators = {"whole": "+-*%", "decimal": "+-*/%", "double": "+-*/"}[kind]
        operator = self._random.choice([*operators, *(("DIV", "&", "|", "^") if kind == "whole" else ())])
        others = {"whole": ("whole",), "decimal": ("whole", "decimal"), "double": NUMBERS}[kind]
        sides = [self.of(kind, depth), self.of(self._random.choice(others), depth)]
        self._random.shuffle(sides)
        if self._random.random() < 0.1:
            sides[1] = sides[0]
        if kind == "double" and self._random.random() < 0.2:
            sides, operator = [self.of("whole", depth), self.of("whole", depth)], "/"
        return f"({sides[0]} {operator} {sides[1]})"

    def _negative(self, kind: str, depth: int) -> str:
        return f"(- {self.of(kind, depth)})" if self._random.random() < 0.5 else f"abs({self.of(kind, depth)})"

    def _comparison(self, _: str, depth: int) -> str:
        kind = self._random.choice(KINDS)
        other = self._random.choice(NUMBERS) if kind in NUMBERS else kind
        left, right = self.of(kind, depth), self.of(other, depth)
        if self._random.random() < 0.1:
            return self._repeated(kind)
        operator = self._random.choice(("=", "<>", "<", "<=", ">", ">=", "<=>", "IN", "BETWEEN", "IS NULL"))
        if operator == "IS NULL":
            return f"({left} IS {self._random.choice(('', 'NOT '))}NULL)"
        if operator == "IN":
            return f"({left} IN ({right}, {self._leaf(kind)}))"
        if operator == "BETWEEN":
            return f"({left} BETWEEN {right} AND {self.of(kind, depth)})"
        return f"({left} {operator} {right})"

    def _repeated(self, kind: str) -> str:
        """Comparisons of one value, which an engine may merge."""
        value, first, second, third = self._leaf(kind), *(self._random.choice(LITERALS[kind]) for _ in range(3))
        forms = (
            f"({value} IN ({first}, {second}) AND {value} IN ({third}))",
            f"(NOT (({value} = {first} OR {value} = {second}) AND {value} <> {third}))",
            f"({value} NOT IN ({first}) OR {value} NOT IN ({second}, {third}))",
            f"({value} > {first} AND {value} < {second})",
            f"({value} = {first} OR {value} <> {first})",
            f"({value} BETWEEN {first} AND {second} OR {value} = {third})",
            f"({value} <=> {value})",
        )
        return self._random.choice(forms)

    def _logic(self, _: str, depth: int) -> str:
        operator = self._random.choice(("AND", "OR"))
        text = f"({self.of('bool', depth)} {operator} {self.of('bool', depth)})"
        return f"(NOT {text})" if self._random.random() < 0.3 else text

    def _choose(self, kind: str, depth: int) -> str:
        values = [self.of(kind, depth) for _ in range(3)]
        forms = (
            f"CASE WHEN {self.of('bool', depth)} THEN {values[0]} WHEN {self.of('bool', depth)} THEN {values[1]} END",
            f"CASE {self._leaf('whole')} WHEN 1 THEN {values[0]} ELSE {values[1]} END",
            f"if({self.of('bool', depth)}, {values[0]}, {values[1]})",
            f"coalesce({', '.join(values)})",
            f"nullif({values[0]}, {values[1]})",
            f"{self._random.choice(('greatest', 'least', 'ifnull', 'nvl'))}({values[0]}, {values[1]})",
            f"nvl2({values[0]}, {values[1]}, {values[2]})",
        )
        return self._random.choice(forms)

    def _convert(self, kind: str, depth: int) -> str:
        sources = {
            "whole": ("whole", "decimal", "bool", "double", "time"),
            "decimal": ("whole", "decimal"),
            "double": NUMBERS,
            "text": ("whole", "decimal", "bool", "date", "time"),
            "bool": ("whole", "bool"),
            "date": ("time",),
            "time": ("date",),
            "bytes": ("text",),
        }
        inner = self.of(self._random.choice(sources[kind]), depth)
        if kind == "decimal" and self._random.random() < 0.3:
            return f"{self._random.choice(('round', 'floor', 'ceil'))}({self.of('decimal', depth)})"
        return f"CAST({inner} AS {self._random.choice(TYPES[kind])})"

    def _moved(self, kind: str, depth: int) -> str:
        units = ("DAY", "WEEK") if kind == "date" else ("SECOND", "MINUTE", "HOUR", "DAY")
        amount = f"INTERVAL {self._random.choice((1, 30, 1000))} {self._random.choice(units)}"
        return f"({self.of(kind, depth)} {self._random.choice('+-')} {amount})"

    def _function(self, kind: str, depth: int) -> str:
        return self._call(self._by_kind[kind], depth)

    def _sum(self) -> str:
        return f"{self._random.choice(('sum', 'avg', 'sum', 'max', 'min'))}({self.of(self._random.choice(NUMBERS), 1)})"

    def _call(self, signatures: list[str], depth: int) -> str:
        name, _, given = self._random.choice(signatures).removesuffix(")").partition("(")
        return f"{name}({', '.join(self._argument(word, depth) for word in given.split())})"

    def _argument(self, word: str, depth: int) -> str:
        if word in {"n", "-n"}:
            return word.replace("n", self._random.choice("0123"))
        if "'" in word or word == "*":
            return word
        return self.of(word, depth) if word in COLUMNS else word

    def _sort(self, signature: str, result: str) -> None:
        name, _, given = signature.removesuffix(")").partition("(")
        first = given.split(" ")[0]
        kind = first if result == FIRST else RESULT_KINDS[result]
        if name in WINDOWS or name in IN_ORDER:
            self._windows.append(signature)
        elif name in AGGREGATES:
            self._aggregates.append(signature)
        elif signature not in CLOCKS and kind in self._by_kind:
            self._by_kind[kind].append(signature)


CLOCKS: Final = ("current_date()", "curdate()", "current_timestamp()", "now()")
