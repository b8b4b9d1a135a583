"""A refusal of SQL, with the place in the text that it is about."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tracelake.errors import InvalidSql


def refusal(node: exp.Expr, message: str, hint: str | None = None, code: str = "refused_sql") -> InvalidSql:
    line, column = place_of(node)
    return InvalidSql(message, line=line, column=column, hint=hint, reason=code)


def place_of(node: exp.Expr) -> tuple[int | None, int | None]:
    """The position of the node, or of the first node inside of it, or of its parent."""
    for near in (*node.walk(bfs=False), *_ancestors(node)):
        meta = near.meta if near._meta else {}  # noqa: SLF001 - asking for `meta` makes one
        if "line" in meta and "start" in meta:
            length = meta["end"] - meta["start"]
            return meta["line"], max(1, meta["col"] - length)
    return None, None


def _ancestors(node: exp.Expr) -> Iterator[exp.Expr]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent
