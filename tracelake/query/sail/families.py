"""The families of types that Sail compares and computes as Spark does, and the family of each part of a query.

Spark converts between types where they differ, and Sail by other rules. So Sail runs a query only if every comparison
is within a family, and every function is called with families of which both are known to give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from sqlglot import exp

from tracelake.query.sail.same_functions import SAME

Family = Literal["int", "decimal", "double", "text", "bytes", "date", "time", "bool", "null"]
BY_TYPE: Final[Mapping[str, Family]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "int"),
    "decimal": "decimal",
    "string": "text",
    "binary": "bytes",
    "date": "date",
    "timestamp": "time",
    "boolean": "bool",
}
"""By Spark's types. Of others, Sail and Spark order or compare some values differently (NaN, NULL in an array)."""
COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
SMALLEST: Final = (str(2**31), str(2**63))
TEXT_ONLY: Final = (exp.Like, exp.ILike, exp.DPipe)
TRUTHS: Final = (*COMPARISONS, exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.Exists)


class OtherFamilyError(Exception):
    """A part of a query of which it is not known that Sail gives the same as Spark."""


class Families:
    """The family of every expression of one query. `columns`: the types of the columns of its tables."""

    def __init__(self, columns: Iterable[tuple[str, str]]) -> None:
        self._columns: dict[str, set[Family | None]] = {}
        for name, type_ in columns:
            self.define(name, BY_TYPE.get(type_.partition("(")[0]))

    def define(self, name: str, family: Family | None) -> None:
        """A column, or a name that the query gives to an expression."""
        self._columns.setdefault(name.casefold(), set()).add(family)

    def of(self, node: Any) -> Family:
        """Return the family of an expression; raises if it, or one of a part of it, is not known."""
        for kinds, rule in _RULES:
            if isinstance(node, kinds):
                return rule(self, node)
        raise OtherFamilyError(type(node).__name__)

    def _of_inner(self, node: Any) -> Family:
        return self.of(node.expressions[0] if isinstance(node, exp.Distinct) else node.this)

    def _of_condition(self, node: Any) -> Family:
        self._check(node)
        return "bool"

    def _of_joined_text(self, node: exp.DPipe) -> Family:
        self._check(node)
        return "text"

    def _of_subquery(self, node: exp.Subquery) -> Family:
        if len(node.selects) != 1:
            raise OtherFamilyError("subquery")
        return self.of(node.selects[0])

    def _of_column(self, node: exp.Column) -> Family:
        known = self._columns.get(node.name.casefold(), set())
        if len(known) != 1 or (family := next(iter(known))) is None:
            raise OtherFamilyError("column")
        return family

    def _of_case(self, node: exp.Case) -> Family:
        conditions = [choice.this for choice in node.args["ifs"]]
        self._same([node.this, *conditions] if node.this is not None else [*conditions, exp.true()])
        values = [choice.args["true"] for choice in node.args["ifs"]]
        default = node.args.get("default")
        family = self._same([*values, *([default] if default is not None else [])])
        if family == "decimal":  # Sail chooses another precision
            raise OtherFamilyError("decimal")
        return family

    def _of_call(self, node: exp.Anonymous) -> Family:
        name = str(node.this).casefold()
        families = [self._of_argument(argument) for argument in node.expressions]
        words = [_word(argument) or family for argument, family in zip(node.expressions, families, strict=True)]
        result = SAME.get(f"{name}({' '.join(families)})") or SAME.get(f"{name}({' '.join(words)})")
        if result is None:
            raise OtherFamilyError(str(node.this))
        return result  # type: ignore[return-value]

    def _of_argument(self, node: Any) -> str:
        return "*" if isinstance(node, exp.Star) else self.of(node)

    def _check(self, node: Any) -> None:
        """Check the parts of a condition."""
        if isinstance(node, exp.And | exp.Or | exp.Not):
            parts = [node.this, *([node.expression] if not isinstance(node, exp.Not) else [])]
            if any(self.of(part) not in {"bool", "null"} for part in parts):
                raise OtherFamilyError("condition")
        elif isinstance(node, exp.In):
            query = node.args.get("query")
            self._same([node.this, *node.expressions, *([query] if query is not None else [])])
        elif isinstance(node, exp.Between):
            self._same([node.this, node.args["low"], node.args["high"]])
        elif isinstance(node, TEXT_ONLY):
            if {self.of(node.this), self.of(node.expression)} != {"text"}:
                raise OtherFamilyError("text")
        elif isinstance(node, COMPARISONS):
            self._same([node.this, node.expression])
        elif isinstance(node, exp.Is):
            self.of(node.this)

    def _same(self, parts: Iterable[Any]) -> Family:
        found = {self.of(part) for part in parts} - {"null"}
        if len(found) > 1 or "double" in found:
            raise OtherFamilyError("families")
        return found.pop() if found else "null"


def _of_negative(node: exp.Neg) -> Family:
    """Only of a number as it is written; the smallest integers have a type of their own in Spark."""
    if not isinstance(node.this, exp.Literal) or node.this.is_string or node.this.this in SMALLEST:
        raise OtherFamilyError("negative")
    return _of_literal(node.this)


def _word(node: Any) -> str | None:
    """Return a text in the query as `SAME` has it: the name of a unit."""
    return f"'{node.this.casefold()}'" if isinstance(node, exp.Literal) and node.is_string else None


def _of_literal(node: exp.Literal) -> Family:
    if node.is_string:
        return "text"
    text = str(node.this).casefold()
    if "e" in text:
        return "double"
    return "decimal" if "." in text else "int"


_RULES: Final[tuple[tuple[Any, Callable[[Families, Any], Family]], ...]] = (
    ((exp.Paren, exp.Alias, exp.Ordered, exp.Filter, exp.Window, exp.Distinct), Families._of_inner),  # noqa: SLF001 - its own
    (exp.Column, Families._of_column),  # noqa: SLF001
    (exp.Literal, lambda _, node: _of_literal(node)),
    (exp.Neg, lambda _, node: _of_negative(node)),
    (exp.Null, lambda *_: "null"),
    ((exp.Boolean, *TRUTHS), Families._of_condition),  # noqa: SLF001
    (exp.DPipe, Families._of_joined_text),  # noqa: SLF001
    (exp.HexString, lambda *_: "bytes"),
    (exp.Case, Families._of_case),  # noqa: SLF001
    (exp.Anonymous, Families._of_call),  # noqa: SLF001
    (exp.Subquery, Families._of_subquery),  # noqa: SLF001
)
