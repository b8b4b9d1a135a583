"""The addresses by which a query selects rows: of a plain SELECT from one table, the list of its `address IN (...)`.

Of a list only the values that the table has decide which rows there are, in NOT IN too. So two queries that differ in
such a list make the same of a table that has no other address of both lists.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from tracelake.domain.sql.gate import CheckedSql

COLUMN: Final = "address"
LISTED: Final = "listed"
"""Stands for the list in what is left of the query: no query that has a list of addresses has this text there."""
MAX_ADDRESSES: Final = 1_000
_HEX = re.compile(r"([0-9A-Fa-f]{2})+")


def listed_addresses(checked: CheckedSql) -> tuple[frozenset[bytes], exp.Query] | None:
    """With the query without them. None: it is no such query, or something else is in the list."""
    tree = checked.tree.copy()
    lists = [item for item in tree.find_all(exp.In) if _is_of_addresses(item)]
    if not _reads_one_table(tree, checked) or len(lists) != 1 or lists[0].find_ancestor(exp.Where) is None:
        return None
    values = [_bytes(value) for value in lists[0].expressions]
    found = frozenset(value for value in values if value is not None)
    if None in values or not 0 < len(found) <= MAX_ADDRESSES:
        return None
    lists[0].set("expressions", [exp.Literal.string(LISTED)])
    return found, tree


def _is_of_addresses(item: exp.In) -> bool:
    return isinstance(item.this, exp.Column) and item.this.name.lower() == COLUMN


def _reads_one_table(tree: exp.Query, checked: CheckedSql) -> bool:
    """Every name in its WHERE is one of a column of that table."""
    table = tree.args["from_"].this if isinstance(tree, exp.Select) and tree.args.get("from_") else None
    if not isinstance(table, exp.Table) or table.name not in checked.tables or table.args.get("pivots"):
        return False
    alone = not tree.args.get("joins") and not tree.args.get("laterals") and not _renames_columns(table)
    inner = sum(1 for _ in tree.find_all(exp.Query, exp.Lambda)) > 1
    return alone and not inner and all(_is_of(table, column) for column in tree.find_all(exp.Column))


def _renames_columns(table: exp.Table) -> bool:
    alias = table.args.get("alias")
    return alias is not None and bool(alias.columns)


def _is_of(table: exp.Table, column: exp.Column) -> bool:
    """`a.address` may also be a field of a column `a`."""
    return column.name.lower() != COLUMN or column.table.lower() in {"", table.alias_or_name.lower()}


def _bytes(value: exp.Expr) -> bytes | None:
    """Of `X'...'` and `unhex('...')`."""
    text: object = None
    if isinstance(value, exp.HexString):
        text = value.this
    elif isinstance(value, exp.Anonymous) and str(value.this).lower() == "unhex" and len(value.expressions) == 1:
        (argument,) = value.expressions
        text = argument.this if isinstance(argument, exp.Literal) and argument.is_string else None
    return bytes.fromhex(text) if isinstance(text, str) and _HEX.fullmatch(text) else None
