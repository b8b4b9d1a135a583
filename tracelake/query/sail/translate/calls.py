"""Functions that Sail runs in other words than Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from sqlglot import exp

from tracelake.domain.sql.decimals import floor_type, round_type
from tracelake.query.sail.translate.arithmetic import UNITS, Typed, converted, difference, moved_by
from tracelake.query.sail.translate.rewrites import (
    call,
    cast,
    checked_whole,
    count_where,
    fitted,
    from_micros,
    in_four_digits,
    plain_whole,
    signed,
    whole_units,
)
from tracelake.query.sail.translate.types import WHOLES, NotOnSail, as_decimal, decimal, family, wider

PARTS: Final = {
    **{name: name for name in ("year", "quarter", "month", "day", "hour", "minute", "dayofweek")},
    "week": "weekofyear",
    "doy": "dayofyear",
}
FORMATS: Final = frozenset(
    {"yyyy", "yyyy-MM", "yyyy-MM-dd", "MM", "dd", "HH", "HH:mm", "HH:mm:ss", "EEEE", "yyyy-MM-dd HH:mm:ss"}
)
TRUNCATED: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
POWERS: Final = 22
"""Powers of ten up to here are doubles."""


class Walk(Protocol):
    def of(self, node: Any) -> Typed: ...


def date_part(part: str, value: Any) -> exp.Expr:
    """Return a part of a date or timestamp as a call of the function of its name."""
    if part.casefold() not in PARTS:
        raise NotOnSail("function", "extract")
    return call(PARTS[part.casefold()], value)


def _type(name: str) -> Callable[[Walk, exp.Anonymous], Typed]:
    type_ = "decimal(10,0)" if name == "decimal" else name

    def rewritten(walk: Walk, node: exp.Anonymous) -> Typed:
        (value,) = _arguments(walk, node, 1)
        return converted(value, type_), type_

    return rewritten


def _date_part(walk: Walk, node: exp.Anonymous) -> Typed:
    part, value = _given(node, 2)
    if not isinstance(part, exp.Literal):
        raise NotOnSail("function", "date_part")
    return walk.of(date_part(part.name, value))


def _date_format(walk: Walk, node: exp.Anonymous) -> Typed:
    value, (pattern, _) = _arguments(walk, node, 2)
    if family(value[1]) not in {"date", "time"} or not isinstance(pattern, exp.Literal) or pattern.name not in FORMATS:
        raise NotOnSail("function", "date_format")
    return in_four_digits(*value, call("date_format", value[0], pattern)), "string"


def _date_trunc(walk: Walk, node: exp.Anonymous) -> Typed:
    (unit, _), value = _arguments(walk, node, 2)
    if value[1] != "timestamp" or not isinstance(unit, exp.Literal) or unit.name.casefold() not in TRUNCATED:
        raise NotOnSail("function", "date_trunc")
    return in_four_digits(*value, call("date_trunc", unit, value[0]), "timestamp"), "timestamp"


def _datediff(walk: Walk, node: exp.Anonymous) -> Typed:
    if len(node.expressions) == 3:  # noqa: PLR2004
        return _timestampdiff(walk, node)
    end, start = _arguments(walk, node, 2)
    if {end[1], start[1]} != {"date"}:
        raise NotOnSail("types", "datediff")
    return checked_whole(exp.Sub, call("unix_date", end[0]), call("unix_date", start[0]), "int"), "int"


def _timestampdiff(walk: Walk, node: exp.Anonymous) -> Typed:
    unit, *others = _given(node, 3)
    start, end = (walk.of(other) for other in others)
    return difference(unit.name.casefold(), start, end), "bigint"


def _timestampadd(walk: Walk, node: exp.Anonymous) -> Typed:
    unit, number, value = _given(node, 3)
    moved, type_ = walk.of(value)
    if type_ != "timestamp" or not number.is_int or unit.name.casefold() not in UNITS:
        raise NotOnSail("types", "timestampadd")
    return moved_by(moved, int(number.to_py()) * UNITS[unit.name.casefold()]), "timestamp"


def _timestamp_seconds(walk: Walk, node: exp.Anonymous) -> Typed:
    (value,) = _arguments(walk, node, 1)
    if family(value[1]) != "whole":
        raise NotOnSail("types", "timestamp_seconds")
    seconds = cast(value[0], "decimal(20,0)")
    return from_micros(exp.Mul(this=seconds, expression=cast(exp.Literal.number(10**6), "decimal(7,0)"))), "timestamp"


def _passed(length: int) -> Callable[[Walk, exp.Anonymous], Typed]:
    def rewritten(walk: Walk, node: exp.Anonymous) -> Typed:
        ((value, type_),) = _arguments(walk, node, 1)
        if type_ != "timestamp":
            raise NotOnSail("types", str(node.this))
        return whole_units(value, length), "bigint"

    return rewritten


def _unix_timestamp(walk: Walk, node: exp.Anonymous) -> Typed:
    """Spark rounds it towards zero."""
    ((value, type_),) = _arguments(walk, node, 1)
    if type_ != "timestamp":
        raise NotOnSail("types", "unix_timestamp")
    return plain_whole(exp.IntDiv, call("unix_micros", value), exp.Literal.number(10**6), "bigint"), "bigint"


def _round(walk: Walk, node: exp.Anonymous) -> Typed:
    given, places = (*_given(node, 1, 2), exp.Literal.number(0))[:2]
    value = walk.of(given)
    if family(value[1]) != "decimal" or not isinstance(places, exp.Literal) or not places.is_int:
        raise NotOnSail("types", "round")
    type_ = round_type(as_decimal(value[1]), int(places.name))
    return fitted(value[0], type_), decimal(type_)


def _floor(walk: Walk, node: exp.Anonymous) -> Typed:
    (value,) = _arguments(walk, node, 1)
    if family(value[1]) == "whole":
        return cast(value[0], "bigint"), "bigint"
    if family(value[1]) != "decimal":
        raise NotOnSail("types", "floor")
    type_ = decimal(floor_type(as_decimal(value[1])))
    return cast(call(str(node.this), value[0]), type_), type_


def _abs(walk: Walk, node: exp.Anonymous) -> Typed:
    (value,) = _arguments(walk, node, 1)
    if family(value[1]) not in {"whole", "decimal", "double"}:
        raise NotOnSail("types", "abs")
    return call("abs", signed(value[0], as_decimal(value[1])) if family(value[1]) == "decimal" else value[0]), value[1]


def _power(walk: Walk, node: exp.Anonymous) -> Typed:
    """Powers of ten by a table, since two libraries may differ in the last digit."""
    (base, _), exponent = _arguments(walk, node, 2)
    if not isinstance(base, exp.Literal) or base.name != "10" or family(exponent[1]) != "whole":
        raise NotOnSail("function", "power")
    cases = [exp.If(this=exp.Literal.number(at), true=exp.Literal.number(f"1e{at}")) for at in range(POWERS + 1)]
    other = cast(call("raise_error", exp.Literal.string("over the limit")), "double")
    return exp.Case(this=exponent[0], ifs=cases, default=other), "double"


def _try_divide(walk: Walk, node: exp.Anonymous) -> Typed:
    left, right = _given(node, 2)
    sides = (
        exp.GT(this=_inside(right.copy()), expression=exp.Literal.number(0)),
        exp.LT(this=_inside(right.copy()), expression=exp.Literal.number(0)),
    )
    other = exp.Or(this=sides[0], expression=sides[1])
    return walk.of(exp.Case(ifs=[exp.If(this=other, true=exp.Div(this=_inside(left), expression=_inside(right)))]))


def _nullif(walk: Walk, node: exp.Anonymous) -> Typed:
    left, right = _given(node, 2)
    same = exp.EQ(this=_inside(left.copy()), expression=_inside(right))
    return walk.of(exp.Case(ifs=[exp.If(this=same, true=exp.Null())], default=left))


def _nvl2(walk: Walk, node: exp.Anonymous) -> Typed:
    value, present, absent = _given(node, 3)
    known = exp.Not(this=exp.Is(this=_inside(value), expression=exp.Null()))
    return walk.of(exp.Case(ifs=[exp.If(this=known, true=present)], default=absent))


def _equal_null(walk: Walk, node: exp.Anonymous) -> Typed:
    left, right = _given(node, 2)
    return walk.of(exp.NullSafeEQ(this=_inside(left), expression=_inside(right)))


def _count_if(walk: Walk, node: exp.Anonymous) -> Typed:
    """Sail ignores a FILTER of count_if."""
    ((condition, type_),) = _arguments(walk, node, 1)
    if type_ != "boolean":
        raise NotOnSail("types", "count_if")
    return count_where(condition), "bigint"


def _pmod(walk: Walk, node: exp.Anonymous) -> Typed:
    """The remainder that is not negative, by a positive number as it is written."""
    value, by = _given(node, 2)
    if not isinstance(by, exp.Literal) or not by.is_int or int(by.name) == 0:
        raise NotOnSail("function", "pmod")
    rest = exp.Paren(this=exp.Mod(this=_inside(value), expression=by))
    moved = exp.Paren(this=exp.Add(this=rest, expression=by.copy()))
    if family(walk.of(value.copy())[1]) != "whole":
        raise NotOnSail("types", "pmod")
    return walk.of(exp.Mod(this=moved, expression=by.copy()))


def _operator(kind: type[exp.Binary]) -> Callable[[Walk, exp.Anonymous], Typed]:
    def rewritten(walk: Walk, node: exp.Anonymous) -> Typed:
        left, right = _given(node, 2)
        return walk.of(kind(this=_inside(left), expression=_inside(right)))

    return rewritten


def _lag(walk: Walk, node: exp.Anonymous) -> Typed:
    """With a default value, which must be of the type of the others."""
    value, *more = [walk.of(item) for item in _given(node, 1, 3)]
    number, default = more[:1], more[1:]
    types = {value[1], *(item[1] for item in default)}
    if family(value[1]) in {"other", "null"} or any(item[1] != "int" for item in number) or wider(types) != value[1]:
        raise NotOnSail("types", str(node.this))
    others = [item[0] for item in number] + [converted(item, value[1]) for item in default]
    return call(str(node.this), value[0], *others), value[1]


def _arguments(walk: Walk, node: exp.Anonymous, count: int) -> list[Typed]:
    return [walk.of(item) for item in _given(node, count)]


def _given(node: exp.Anonymous, count: int, most: int | None = None) -> list[Any]:
    """Return what the call is given; of another number of arguments, what is wrong is Spark's to say."""
    if not count <= len(node.expressions) <= (most or count):
        raise NotOnSail("function", str(node.this))
    return node.expressions


def _inside(node: Any) -> Any:
    return exp.Paren(this=node) if isinstance(node, exp.Binary | exp.Not | exp.Neg) else node


REWRITTEN: Final[Mapping[str, Callable[[Any, exp.Anonymous], Typed]]] = {
    **{name: _type(name) for name in (*WHOLES, "double", "string", "decimal", "boolean")},
    **dict.fromkeys(("date_part", "datepart"), _date_part),
    **dict.fromkeys(("datediff", "date_diff"), _datediff),
    **dict.fromkeys(("floor", "ceil", "ceiling"), _floor),
    **dict.fromkeys(("power", "pow"), _power),
    **dict.fromkeys(("lag", "lead"), _lag),
    "unix_seconds": _passed(10**6),
    "unix_timestamp": _unix_timestamp,
    "unix_millis": _passed(10**3),
    "mod": _operator(exp.Mod),
    "date_format": _date_format,
    "date_trunc": _date_trunc,
    "timestampdiff": _timestampdiff,
    "timestampadd": _timestampadd,
    "timestamp_seconds": _timestamp_seconds,
    "round": _round,
    "try_divide": _try_divide,
    "nullif": _nullif,
    "nvl2": _nvl2,
    "abs": _abs,
    "pmod": _pmod,
    "count_if": _count_if,
    "equal_null": _equal_null,
}
