"""Calls of allowed functions with columns as arguments, and whether the translation for Sail lets them pass.

Found by asking the translation, so that a function which it learns is compared on both engines without being listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

from sqlglot import exp

from tests.support.cases.engine_parity import uses
from tests.support.cases.made_up_expressions import CLOCKS
from tests.support.cases.parity_tables import COLUMNS
from tracelake.domain.sql.functions import CLOCKS_AND_CHANCE, FUNCTIONS
from tracelake.query.sail.translate.expressions import Expressions
from tracelake.query.sail.translate.scopes import QueryScope
from tracelake.query.sail.translate.types import NotOnSail

ALLOWED: Final = sorted({*FUNCTIONS, *CLOCKS_AND_CHANCE, "unix_timestamp"})
"""Every function that the gate lets through."""
ONE_OF_EACH: Final = ("i", "l", "dec", "d", "t", "b", "dt", "ts", "ok")
"""A column of each family, and of both integers."""
FEW: Final = ("i", "t", "ts")
MOST: Final = 4


def all_calls() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every allowed function with up to two columns of all families, and up to four of some."""
    for name in ALLOWED:
        for count in range(MOST + 1):
            pool = ONE_OF_EACH if count <= 2 else FEW  # a family more is many calls more
            yield from ((name, columns) for columns in product(pool, repeat=count))


def is_on_sail(name: str, columns: Sequence[str]) -> bool:
    """Whether the translation lets it pass. Whatever else it raises is a defect."""
    call = exp.Anonymous(this=name, expressions=[exp.column(column) for column in columns])
    exp.Select(expressions=[call])  # a call is written differently by what is around it
    types = [(column, type_) for column, (type_, _) in COLUMNS.items()]
    try:
        Expressions(QueryScope({}, sources=[("", types)]), _no_query).of(call)
    except NotOnSail:
        return False
    return True


def accepted_calls() -> dict[str, list[str]]:
    """By the way in which they are used: calls that run on Sail and give the same each time."""
    found: dict[str, list[str]] = {}
    for name, columns in all_calls():
        if f"{name}()" not in CLOCKS and is_on_sail(name, columns):
            for use in uses(f"{name}()"):
                found.setdefault(use, []).append(f"{name}({', '.join(columns)})")
    return found


def _no_query(*_: Any) -> Any:
    raise AssertionError("there is no query in a call of columns")
