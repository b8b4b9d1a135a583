"""Types of values as Spark names them, and the type that Spark converts several of them to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from tracelake.domain.sql.decimals import DecimalType, wider_type

Family = Literal["whole", "decimal", "double", "text", "bytes", "date", "time", "bool", "null", "other"]
WHOLES: Final = ("tinyint", "smallint", "int", "bigint")
FAMILIES: Final[Mapping[str, Family]] = {
    **dict.fromkeys(WHOLES, "whole"),
    "decimal": "decimal",
    "double": "double",
    "string": "text",
    "binary": "bytes",
    "date": "date",
    "timestamp": "time",
    "boolean": "bool",
    "void": "null",
}
AS_DECIMAL: Final[Mapping[str, DecimalType]] = {
    "tinyint": (3, 0),
    "smallint": (5, 0),
    "int": (10, 0),
    "bigint": (20, 0),
}
LAST_OF_INT: Final = 2**31 - 1
LAST_OF_BIGINT: Final = 2**63 - 1


class NotOnSail(Exception):
    """A part of a query of which it is not known that Sail gives the same as Spark. `reason` is a word for metrics."""

    def __init__(self, reason: str, part: str = "") -> None:
        super().__init__(part or reason)
        self.reason = reason


def family(type_: str) -> Family:
    """Return the family of a type; `other` has values that can be read and returned, and nothing else."""
    return FAMILIES.get(type_.partition("(")[0], "other")


def as_decimal(type_: str) -> DecimalType:
    """Return what Spark takes a decimal or an integer for in the arithmetic of decimals."""
    if type_ in AS_DECIMAL:
        return AS_DECIMAL[type_]
    precision, scale = type_.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)


def decimal(type_: DecimalType) -> str:
    return f"decimal({type_[0]},{type_[1]})"


def whole_type(value: int) -> str:
    """Return the type of an integer as it is written."""
    if -LAST_OF_INT <= value <= LAST_OF_INT:
        return "int"
    if -LAST_OF_BIGINT <= value <= LAST_OF_BIGINT:
        return "bigint"
    return decimal((len(str(abs(value))), 0))


def wider(types: Iterable[str]) -> str:
    """Return the type that values of these types have together, in a CASE or as two sides of a comparison."""
    found = sorted(set(types) - {"void"})
    families = {family(type_) for type_ in found}
    if len(found) <= 1:
        return found[0] if found else "void"
    if families == {"whole"}:
        return max(found, key=WHOLES.index)
    if families <= {"whole", "decimal"}:
        if (common := wider_type(as_decimal(type_) for type_ in found)) is not None:
            return decimal(common)
    elif families <= {"whole", "decimal", "double"}:
        return "double"
    raise NotOnSail("types", " and ".join(found))
