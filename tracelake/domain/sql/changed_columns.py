"""Which columns of a query's result can change with its text and with columns of its tables; the rows stay.

Only the list of a plain SELECT may differ. What else stands in a query decides which rows there are, and so does a list
with an aggregate, a window or several rows from one: then any column may change, and the rows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tracelake.domain.dag.catalog import SAME, ChangedFields
from tracelake.domain.sql.columns_read import columns_read, names_in, reads_unnamed
from tracelake.domain.sql.dialect import render
from tracelake.domain.sql.functions import AGGREGATES, GENERATORS, WINDOWS
from tracelake.domain.sql.gate import CheckedSql

BEFORE_THE_LIST: Final = frozenset({"with_", "from_", "joins", "laterals", "where", "expressions"})
"""Parts of a SELECT that cannot name a column of its list."""


def changed_columns(former: CheckedSql, new: CheckedSql, tables: Mapping[str, ChangedFields]) -> ChangedFields:
    """`tables`: which columns of each table can change."""
    changed = [tables.get(name, SAME) for name in former.tables | new.tables]
    known = [columns for columns in changed if columns is not None]
    if len(known) < len(changed):
        return None
    names = frozenset().union(*known)
    if former.tree == new.tree and _reads_none(new, names):
        return SAME
    if names and (reads_unnamed(former) or reads_unnamed(new)):
        return None
    return _in_lists(_listed(former.tree), _listed(new.tree), names)


def _reads_none(query: CheckedSql, names: frozenset[str]) -> bool:
    read = columns_read(query)
    return not names or (read is not None and not read & names)


@dataclass(frozen=True)
class _Listed:
    """A plain SELECT: its list, and the rest of it."""

    columns: Mapping[str, exp.Expr]
    rest: str
    names: frozenset[str]
    """In the rest."""
    names_of_columns: frozenset[str]
    """In those parts of the rest that may name a column of the list."""


def _listed(tree: exp.Expr) -> _Listed | None:
    if not isinstance(tree, exp.Select) or any(tree.args.get(name) for name in ("distinct", "limit", "offset")):
        return None
    columns = {item.alias_or_name.lower(): item for item in tree.expressions}
    if "" in columns or len(columns) < len(tree.expressions) or any(item.is_star for item in tree.expressions):
        return None
    rest = tree.copy()
    rest.set("expressions", [exp.Literal.number(1)])
    after = [part for name, part in tree.args.items() if name not in BEFORE_THE_LIST and isinstance(part, exp.Expr)]
    if any(_counts_places(part) for part in after):
        return None
    named = frozenset().union(*(names_in(part) for part in after))
    return _Listed(columns, render(rest), names_in(rest), named)


def _counts_places(part: exp.Expr) -> bool:
    """GROUP BY 1, ORDER BY 2, GROUP BY ALL."""
    items = [item.this if isinstance(item, exp.Ordered) else item for item in part.expressions]
    return any(isinstance(item, exp.Literal) for item in items) or bool(part.args.get("all"))


def _in_lists(former: _Listed | None, new: _Listed | None, names: frozenset[str]) -> ChangedFields:
    if former is None or new is None or former.rest != new.rest or new.names & names or _moved(former, new):
        return None
    every = former.columns.keys() | new.columns.keys()
    changed = {name for name in every if former.columns.get(name) != new.columns.get(name)}
    changed |= {name for name, item in new.columns.items() if names_in(item) & names}
    while more := {name for name in every - changed if names_in(new.columns[name]) & changed}:
        changed |= more  # an expression may name a column before it in the list
    items = [side.columns[name] for side in (former, new) for name in changed if name in side.columns]
    if new.names_of_columns & changed or any(_decides_rows(item) for item in items):
        return None
    return frozenset(changed)


def _moved(former: _Listed, new: _Listed) -> bool:
    """Whether columns that both have are in another order: a star gives another result then."""
    return [name for name in former.columns if name in new.columns] != [
        name for name in new.columns if name in former.columns
    ]


def _decides_rows(item: exp.Expr) -> bool:
    """How many there are, or in which order they are written."""
    calls = {str(call.this).lower() for call in item.find_all(exp.Anonymous)}
    return bool(calls & (AGGREGATES | GENERATORS | WINDOWS)) or item.find(exp.Window, exp.Query) is not None
