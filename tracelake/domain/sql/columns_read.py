"""The columns that can decide the result of a query, by name: another value in any other column changes nothing.

A name counts wherever it stands and whichever table it may belong to, also if no table has such a column now: a table
that gets one may give the name another meaning. So the names may be too many, never too few. A star, or anything else
that reads columns without naming them, may read any.
"""

from __future__ import annotations

from sqlglot import exp

from tracelake.domain.sql.gate import CheckedSql


def columns_read(checked: CheckedSql) -> frozenset[str] | None:
    """In small letters; None: any column may be read."""
    names = names_in(checked.tree)
    if reads_unnamed(checked) or not all(name.isascii() for name in names):
        return None
    return names


def names_in(tree: exp.Expr) -> frozenset[str]:
    """Every name that may be a column's, in small letters."""
    return frozenset(item.name.lower() for item in tree.find_all(exp.Identifier) if not _names_a_table(item))


def reads_unnamed(checked: CheckedSql) -> bool:
    """Whether it may read columns that it does not name."""
    tree = checked.tree
    return (
        any(not _counts_rows(star) for star in tree.find_all(exp.Star))
        or tree.find(exp.Pivot) is not None
        or any(join.method.upper() == "NATURAL" for join in tree.find_all(exp.Join))
        or any(_renames_columns(table) for table in tree.find_all(exp.Table))
    )


def _names_a_table(item: exp.Identifier) -> bool:
    """Or a result: what reads that under its name has an identifier of its own."""
    return isinstance(item.parent, exp.Table | exp.TableAlias) or (
        isinstance(item.parent, exp.Alias) and item.arg_key == "alias"
    )


def _counts_rows(star: exp.Star) -> bool:
    """`count(*)`."""
    call = star.parent
    return isinstance(call, exp.Anonymous) and str(call.this).lower() == "count" and call.expressions == [star]


def _renames_columns(table: exp.Table) -> bool:
    """`FROM orders AS o (id, amount)`: by their places."""
    alias = table.args.get("alias")
    return alias is not None and bool(alias.columns)
