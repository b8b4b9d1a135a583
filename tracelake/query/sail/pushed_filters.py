"""Finds the conditions of a query that Postgres may apply to a table, and the columns that the query needs of it.

Sail applies every condition of the query itself. What is found here only leaves out rows that it would drop: parts of
the WHERE of the only SELECT that reads the table, which compare one of its columns with a constant of its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp

from tracelake.domain.sql.gate import CheckedSql, granted_tables

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

WHOLE: Final = ("tinyint", "smallint", "int", "bigint")


def pushed_filters(checked: CheckedSql, table: str, types: Mapping[str, str]) -> list[Filter]:
    """`types`: Spark's, by the table's columns."""
    if table not in checked.read_once:
        return []
    source = next(node for node, name in granted_tables(checked.tree, checked.tables) if name == table)
    select = source.parent.parent if isinstance(source.parent, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or not isinstance(select.args.get("where"), exp.Where):
        return []
    joins: Sequence[exp.Join] = select.args.get("joins") or ()
    alias = source.args.get("alias")
    if select.args.get("laterals") or (alias and alias.columns) or not all(_is_inner(join) for join in joins):
        return []
    reader = _Conditions(source.alias_or_name.casefold(), bool(joins), {k.casefold(): (k, v) for k, v in types.items()})
    return list(reader.of(select.args["where"].this))


def needed_columns(checked: CheckedSql, columns: Sequence[str]) -> list[str]:
    """Return those that the query may use: all where a star or a NATURAL JOIN stands for names."""
    if any(not isinstance(star.parent, exp.Anonymous) for star in checked.tree.find_all(exp.Star)):
        return list(columns)
    if any(join.method for join in checked.tree.find_all(exp.Join)):
        return list(columns)
    words = {node.name.casefold() for node in checked.tree.find_all(exp.Identifier)}
    return [name for name in columns if name.casefold() in words]


class _Conditions:
    def __init__(self, alias: str, qualified: bool, types: Mapping[str, tuple[str, str]]) -> None:
        self._alias = alias
        self._qualified = qualified
        """Whether a column without a table's name may be another table's."""
        self._types = types

    def of(self, node: Any) -> Iterator[Filter]:
        """Yield what must hold of a row for the condition to be true."""
        from pyspark.sql import datasource as ds

        if isinstance(node, exp.Paren):
            yield from self.of(node.this)
        elif isinstance(node, exp.And):
            yield from self.of(node.left)
            yield from self.of(node.right)
        elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
            yield from self._compared(ds.GreaterThanOrEqual, node.this, node.args["low"])
            yield from self._compared(ds.LessThanOrEqual, node.this, node.args["high"])
        elif isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            yield from self._one_of(node)
        elif type(node) in _operators():
            forth, back = _operators()[type(node)]
            yield from self._compared(forth, node.left, node.right)
            yield from self._compared(back, node.right, node.left)

    def _compared(self, kind: Any, column: Any, constant: Any) -> Iterator[Filter]:
        known = self._column(column)
        value = None if known is None else _value(constant, known[1])
        if known is not None and value is not None:
            yield kind((known[0],), value)

    def _one_of(self, node: exp.In) -> Iterator[Filter]:
        from pyspark.sql import datasource as ds

        known = self._column(node.this)
        values = [] if known is None else [_value(item, known[1]) for item in node.expressions]
        if known is not None and None not in values:
            yield ds.In((known[0],), tuple(values))

    def _column(self, node: Any) -> tuple[str, str] | None:
        """Return the name and the type of a node that is certainly a column of the table."""
        if not isinstance(node, exp.Column) or node.is_star:
            return None
        *table, name = [part.name.casefold() for part in node.parts]
        ours = table == [self._alias] or (not table and not self._qualified)
        return self._types.get(name) if ours else None


def _operators() -> Mapping[type[Any], tuple[Any, Any]]:
    """The comparison, and the same with its sides exchanged."""
    from pyspark.sql import datasource as ds

    return {
        exp.EQ: (ds.EqualTo, ds.EqualTo),
        exp.GT: (ds.GreaterThan, ds.LessThan),
        exp.GTE: (ds.GreaterThanOrEqual, ds.LessThanOrEqual),
        exp.LT: (ds.LessThan, ds.GreaterThan),
        exp.LTE: (ds.LessThanOrEqual, ds.GreaterThanOrEqual),
    }


def _value(node: Any, type_: str) -> int | str | None:
    """Return the constant, if it is of the column's type."""
    sign = -1 if isinstance(node, exp.Neg) else 1
    node = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(node, exp.Literal):
        return None
    if node.is_string:
        return str(node.this) if type_ == "string" and sign == 1 else None
    return sign * int(node.this) if type_ in WHOLE and str(node.this).isdecimal() else None


def _is_inner(join: exp.Join) -> bool:
    return not join.side and not join.method and join.kind in {"", "INNER", "CROSS"} and not join.args.get("using")
