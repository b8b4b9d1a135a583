"""Every expression of a query with its type, rewritten where Sail would compute something else than Spark.

Spark converts between types where they differ, and Sail by other rules. So conversions are written down, every function
is one of which both are known to give the same, and an expression whose type is not known runs on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import inf
from typing import Any, Final

from sqlglot import exp

from tracelake.domain.sql.decimals import literal_type
from tracelake.query.sail.translate.aggregates import AGGREGATES, aggregated
from tracelake.query.sail.translate.arithmetic import (
    ARITHMETIC,
    Typed,
    brought_to,
    computed,
    converted,
    is_time,
    negative,
)
from tracelake.query.sail.translate.calls import REWRITTEN, date_part
from tracelake.query.sail.translate.places import check_frame, has_one_meaning, is_pattern, only_selects
from tracelake.query.sail.translate.rewrites import call, comparable, kept
from tracelake.query.sail.translate.same_functions import FIRST, IN_ORDER, SAME
from tracelake.query.sail.translate.scopes import QueryScope
from tracelake.query.sail.translate.types import NotOnSail, decimal, family, whole_type, wider

COMPARISONS: Final = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
SMALLEST: Final = (str(2**31), str(2**63))
KEYS: Final = {"whole", "decimal", "text", "bytes", "date", "time", "bool"}
"""Families of which Sail groups, joins and counts values as Spark does. Of doubles there are two zeros, and NaN."""
CHOSEN_FROM: Final = {"coalesce": (1, inf), "ifnull": (2, 2), "nvl": (2, 2), "greatest": (2, inf), "least": (2, inf)}
"""Functions that return one of their arguments, and from how many, at least and at most."""
CHOICES: Final = frozenset(CHOSEN_FROM)


class Expressions:
    """The expressions of one SELECT. `query` gives a query inside of an expression, and the types of its columns."""

    def __init__(self, scope: QueryScope, query: Callable[[Any, QueryScope], tuple[Any, list[str]]]) -> None:
        self.scope = scope
        self._query = query

    def of(self, node: Any) -> Typed:
        """Return an expression for Sail, and its type."""
        for kinds, rule in _RULES:
            if isinstance(node, kinds):
                found = rule(self, node)
                self.scope.budget.spend(found[0] if isinstance(node, COPYING) else None)
                return found
        raise NotOnSail("syntax", type(node).__name__)

    def key(self, node: Any) -> Typed:
        """Return an expression whose values are grouped, joined or counted."""
        found = self.of(node)
        if family(found[1]) not in KEYS:
            raise NotOnSail("types", f"{found[1]} as a key")
        return found

    def condition(self, node: Any) -> Any:
        found, type_ = self.of(node)
        if type_ != "boolean":
            raise NotOnSail("types", "condition")
        return found

    def ordered(self, items: Sequence[exp.Ordered]) -> list[exp.Ordered]:
        """Return the expressions of an ORDER BY."""
        for item in items:
            value, type_ = self.of(item.this)
            if family(type_) not in KEYS | {"double"}:
                raise NotOnSail("types", f"{type_} in order")
            item.set("this", comparable(value) if type_ == "double" else value)
        return list(items)

    def _of_inner(self, node: Any) -> Typed:
        inner, type_ = self.of(node.this)
        node.set("this", inner)
        return node, type_

    def _of_column(self, node: exp.Column) -> Typed:
        if isinstance(node.this, exp.Star):
            raise NotOnSail("syntax", "star")
        return self.scope.read(node)

    def _of_condition(self, node: Any) -> Typed:
        """AND, OR and NOT."""
        for key in ("this", "expression"):
            if node.args.get(key) is not None:
                node.set(key, self.condition(node.args[key]))
        return node, "boolean"

    def _of_comparison(self, node: exp.Binary) -> Typed:
        values = self._alike([node.this, node.expression], strict=isinstance(node, exp.GT | exp.LT))
        for key, value in zip(("this", "expression"), values, strict=True):
            node.set(key, value)
        return node, "boolean"

    def _of_between(self, node: exp.Between) -> Typed:
        keys = ("this", "low", "high")
        for key, value in zip(keys, self._alike([node.args[key] for key in keys]), strict=True):
            node.set(key, value)
        return node, "boolean"

    def _of_in(self, node: exp.In) -> Typed:
        query = node.args.get("query")
        if query is not None:
            value, type_ = self.key(node.this)
            inner, types = self._query(query, self.scope)
            if types != [type_] or not only_selects(node):
                raise NotOnSail("types", "in")
            node.set("this", value)
            node.set("query", inner)
            return node, "boolean"
        value, *values = self._alike([node.this, *node.expressions], keys=True)
        node.set("this", value)
        node.set("expressions", values)
        return node, "boolean"

    def _of_is(self, node: exp.Is) -> Typed:
        value, type_ = self.of(node.this)
        if not isinstance(node.expression, exp.Null) and type_ != "boolean":
            raise NotOnSail("types", "is")
        node.set("this", value)
        return node, "boolean"

    def _of_texts(self, node: exp.Binary) -> Typed:
        """LIKE, and texts side by side."""
        if isinstance(node, exp.Like) and not is_pattern(node.expression):
            raise NotOnSail("syntax", "pattern")
        for key in ("this", "expression"):
            value, type_ = self.of(node.args[key])
            if type_ != "string":
                raise NotOnSail("types", "text")
            node.set(key, value)
        return node, "string" if isinstance(node, exp.DPipe) else "boolean"

    def _alike(self, nodes: Iterable[Any], *, keys: bool = False, strict: bool = False) -> list[Any]:
        """Return the parts of a comparison, in one type."""
        parts = _times_of_texts([self.of(node) for node in nodes])
        type_ = wider(type_ for _, type_ in parts)
        if family(type_) not in KEYS | {"null"} | ({"double"} if not keys else set()):
            raise NotOnSail("types", f"comparison of {type_}")
        values = [brought_to(part, type_) for part in parts]
        if type_ == "double" and not strict and not has_one_meaning([node for node, _ in parts]):
            raise NotOnSail("types", "equal doubles")
        if type_ == "double":
            return [comparable(value) for value in values]
        constant = any(value.find(exp.Column) is None for value in values)
        return [kept(value) if constant and value.find(exp.Cast) else value for value in values]

    def _one_of(self, nodes: Iterable[Any]) -> tuple[list[Any], str]:
        """Return the values that an expression chooses from, in one type."""
        parts = [self.of(node) for node in nodes]
        type_ = wider(type_ for _, type_ in parts)
        if family(type_) not in KEYS | {"double"}:
            raise NotOnSail("types", f"choice of {type_}")
        mixed = len({given for _, given in parts}) > 1
        return [converted(part, type_) if mixed else part[0] for part in parts], type_

    def _of_trim(self, node: exp.Trim) -> Typed:
        for key in ("this", "expression"):
            value, type_ = self.of(node.args[key])
            if type_ != "string":
                raise NotOnSail("types", "trim")
            node.set(key, value)
        return node, "string"

    def _of_bits(self, node: Any) -> Typed:
        """The inverse of an integer, and a shift by a number as it is written."""
        value, type_ = self.of(node.this)
        by = node.args.get("expression")
        if type_ not in {"int", "bigint"} or (by is not None and not (isinstance(by, exp.Literal) and by.is_int)):
            raise NotOnSail("types", type(node).__name__)
        node.set("this", value)
        return node, type_

    def _of_element(self, node: exp.Bracket) -> Typed:
        """An element of an array, by a number as it is written."""
        value, type_ = self.of(node.this)
        (place,) = node.expressions if len(node.expressions) == 1 else (None,)
        element = type_.removeprefix("array<").removesuffix(">")
        if not type_.startswith("array<") or family(element) == "other" or not isinstance(place, exp.Literal):
            raise NotOnSail("types", "element")
        if place.is_string:
            raise NotOnSail("types", "element")
        node.set("this", value)
        return node, element

    def _of_case(self, node: exp.Case) -> Typed:
        choices, default = node.args["ifs"], node.args.get("default")
        if node.this is not None:
            for choice in choices:  # CASE x WHEN 1: the same as CASE WHEN x = 1
                choice.set("this", exp.EQ(this=_inside(node.this.copy()), expression=_inside(choice.this)))
            node.set("this", None)
        for choice in choices:
            choice.set("this", self.condition(choice.this))
        results = [choice.args["true"] for choice in choices] + ([default] if default is not None else [])
        values, type_ = self._one_of(results)
        for choice, value in zip(choices, values, strict=False):
            choice.set("true", value)
        if default is not None:
            node.set("default", values[-1])
        return node, type_

    def _of_if(self, node: exp.If) -> Typed:
        otherwise = node.args.get("false")
        case = exp.Case(ifs=[exp.If(this=node.this, true=node.args["true"])], default=otherwise)
        return self._of_case(case)

    def _of_subquery(self, node: Any) -> Typed:
        inner, types = self._query(node, self.scope)
        if len(types) != 1:
            raise NotOnSail("types", "subquery")
        return inner, types[0]

    def _of_exists(self, node: exp.Exists) -> Typed:
        inner, _ = self._query(node.this, self.scope)
        node.set("this", inner)
        return node, "boolean"

    def _of_arithmetic(self, node: exp.Binary) -> Typed:
        left = self.of(node.this)
        right = (node.expression, "") if isinstance(node.expression, exp.Interval) else self.of(node.expression)
        return computed(type(node), left, right)

    def _of_negative(self, node: exp.Neg) -> Typed:
        """The smallest integers have a type of their own in Spark."""
        if isinstance(node.this, exp.Literal):
            if node.this.is_string or node.this.name in SMALLEST:
                raise NotOnSail("types", "negative")
            return node, self.of(node.this)[1]
        return negative(self.of(node.this))

    def _of_cast(self, node: exp.Cast) -> Typed:
        if type(node) is not exp.Cast:
            raise NotOnSail("syntax", "try_cast")
        type_ = _type_name(node.to)
        return converted(self.of(node.this), type_), type_

    def _of_extract(self, node: exp.Extract) -> Typed:
        return self.of(date_part(node.name, node.expression))

    def _of_call(self, node: exp.Anonymous) -> Typed:
        name = str(node.this).casefold()
        if name in AGGREGATES or (name in IN_ORDER and not isinstance(node.parent, exp.Window)):
            return self._of_wrapped(node)
        if name in CHOICES:
            return self._of_choice(node, name)
        if name in REWRITTEN:
            return REWRITTEN[name](self, node)
        if any(isinstance(item, exp.Distinct) for item in node.expressions):
            return self._of_distinct(node, name)
        arguments = [(item, "*") if isinstance(item, exp.Star) else self.of(item) for item in node.expressions]
        node.set("expressions", [argument for argument, _ in arguments])
        return node, _result(name, arguments)

    def _of_distinct(self, node: exp.Anonymous, name: str) -> Typed:
        if name != "count" or len(node.expressions) != 1:
            raise NotOnSail("function", f"{name}(DISTINCT)")
        distinct = node.expressions[0]
        distinct.set("expressions", [self.key(item)[0] for item in distinct.expressions])
        return node, "bigint"

    def _of_choice(self, node: exp.Anonymous, name: str) -> Typed:
        least, most = CHOSEN_FROM[name]
        if not least <= len(node.expressions) <= most:
            raise NotOnSail("function", name)  # Sail takes what Spark refuses
        values, type_ = self._one_of(node.expressions)
        if type_ == "double" and name in {"greatest", "least"}:
            raise NotOnSail("types", name)
        return call("coalesce" if name in {"ifnull", "nvl"} else name, *values), type_  # of decimals Sail makes doubles

    def _of_wrapped(self, node: Any) -> Typed:
        """A call, and perhaps a FILTER and an OVER around it, which then belong to every part of what replaces it."""
        used = node
        while isinstance(used, exp.Window | exp.Filter):
            self._prepare(used)
            used = used.this
        if not isinstance(used, exp.Anonymous):
            raise NotOnSail("syntax", type(used).__name__)
        name = str(used.this).casefold()
        if name in IN_ORDER and not (isinstance(node, exp.Window) and node.args.get("order")):
            raise NotOnSail("function", name)
        if name not in AGGREGATES:
            inner, type_ = self._of_call(used)
            used.replace(inner)
            return (inner if used is node else node), type_
        (argument,) = used.expressions if len(used.expressions) == 1 else (None,)
        if argument is None or isinstance(argument, exp.Distinct | exp.Star):
            raise NotOnSail("function", name)
        return aggregated(name, self.of(argument), lambda made: _rewrapped(node, used, made))

    def _prepare(self, wrapper: Any) -> None:
        if isinstance(wrapper, exp.Filter):
            wrapper.expression.set("this", self.condition(wrapper.expression.this))
            return
        if wrapper.args.get("alias") or wrapper.args.get("first"):
            raise NotOnSail("syntax", "window")
        check_frame(wrapper.args.get("spec"))
        parts = [self.key(item)[0] for item in wrapper.args.get("partition_by") or ()]
        wrapper.set("partition_by", parts or None)
        if (order := wrapper.args.get("order")) is not None:
            order.set("expressions", self.ordered(order.expressions))


def _result(name: str, arguments: Sequence[Typed]) -> str:
    """Return the type of a call, if Sail gives the same as Spark for arguments like these."""
    for words in product(*(_words(*argument) for argument in arguments)):
        result = SAME.get(f"{name}({' '.join(words)})")
        if result is not None:
            return arguments[0][1] if result == FIRST else result
    raise NotOnSail("function", name)


def _words(node: Any, type_: str) -> list[str]:
    """Return the words that `SAME` may have for an argument."""
    words = [type_ if type_ == "*" else family(type_)]
    if type_ in {"tinyint", "smallint", "int"}:
        words += ["int", *(["n"] if isinstance(node, exp.Literal) else [])]
        words += ["-n"] if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) else []
    if type_.startswith("array<"):
        words.append("array")
    if isinstance(node, exp.Literal) and node.is_string:
        words.append(f"'{node.name.casefold()}'")
    return words


def _times_of_texts(parts: list[Typed]) -> list[Typed]:
    """Return texts that are compared with dates or timestamps as these."""
    times = {type_ for _, type_ in parts} & {"date", "timestamp"}
    if len(times) != 1 or "string" not in {type_ for _, type_ in parts}:
        return parts
    (type_,) = times
    return [(converted(part, type_), type_) if is_time(part[0], type_) else part for part in parts]


def _rewrapped(node: Any, call: Any, made: Any) -> Any:
    """Return a call in place of another, with the wrappers of that one."""
    if node is call:
        return made
    copy = node.copy()
    inner = copy
    while isinstance(inner.this, exp.Window | exp.Filter):
        inner = inner.this
    inner.set("this", made)
    return copy


def _type_name(type_: exp.DataType) -> str:
    name = type_.sql("spark").casefold().replace(" ", "")
    return "decimal(10,0)" if name == "decimal" else name


def _of_literal(node: exp.Literal) -> Typed:
    if node.is_string:
        return node, "string"
    if "e" in node.name.casefold():
        return node, "double"
    return node, decimal(literal_type(node.name)) if "." in node.name else whole_type(int(node.name))


def _inside(node: Any) -> Any:
    return exp.Paren(this=node) if isinstance(node, exp.Binary | exp.Not) else node


COPYING: Final = (exp.Column, exp.Anonymous, exp.Window, exp.Filter, exp.Case, exp.Cast)
"""What may be replaced by an expression that has its parts several times."""
_RULES: Final[tuple[tuple[Any, Callable[[Expressions, Any], Typed]], ...]] = (
    (exp.Column, Expressions._of_column),  # noqa: SLF001 - its own
    (exp.Literal, lambda _, node: _of_literal(node)),
    (exp.Anonymous, Expressions._of_call),  # noqa: SLF001
    ((exp.Window, exp.Filter), Expressions._of_wrapped),  # noqa: SLF001
    (exp.Paren, Expressions._of_inner),  # noqa: SLF001
    (COMPARISONS, Expressions._of_comparison),  # noqa: SLF001
    ((exp.And, exp.Or, exp.Not), Expressions._of_condition),  # noqa: SLF001
    (exp.Is, Expressions._of_is),  # noqa: SLF001
    (exp.In, Expressions._of_in),  # noqa: SLF001
    (exp.Between, Expressions._of_between),  # noqa: SLF001
    ((exp.Like, exp.DPipe), Expressions._of_texts),  # noqa: SLF001
    (ARITHMETIC, Expressions._of_arithmetic),  # noqa: SLF001
    (exp.Neg, Expressions._of_negative),  # noqa: SLF001
    (exp.Cast, Expressions._of_cast),  # noqa: SLF001
    (exp.Case, Expressions._of_case),  # noqa: SLF001
    (exp.If, Expressions._of_if),  # noqa: SLF001
    (exp.Trim, Expressions._of_trim),  # noqa: SLF001
    ((exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift), Expressions._of_bits),  # noqa: SLF001
    (exp.Bracket, Expressions._of_element),  # noqa: SLF001
    (exp.Extract, Expressions._of_extract),  # noqa: SLF001
    (exp.Boolean, lambda _, node: (node, "boolean")),
    (exp.Null, lambda _, node: (node, "void")),
    (exp.HexString, lambda _, node: (node, "binary")),
    (exp.Exists, Expressions._of_exists),  # noqa: SLF001
    (exp.Subquery, Expressions._of_subquery),  # noqa: SLF001
)
