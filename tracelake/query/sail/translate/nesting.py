"""Refuses operations within operations for which Sail would plan for seconds, or without end.

What is computed in a wider type and converted back, as integers are, Sail plans anew for each level above it: the time
triples with each `+ 1`. It merges subqueries and parts of a WITH into what reads them, so their levels count as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from tracelake.query.sail.translate.types import NotOnSail

MOST_LEVELS: Final = 7
"""Some milliseconds of planning; 14 take a minute."""


def refuse_nested(tree: Any) -> None:
    """Refuse a query as it is written for Sail."""
    _levels(tree, {})


def _levels(query: Any, ctes: Mapping[str, int]) -> int:
    """Return how many levels the columns of a query have, with those that they are made of."""
    if isinstance(query, exp.Table):
        return ctes.get(query.name.casefold(), 0)
    for cte in query.args["with_"].expressions if query.args.get("with_") is not None else ():
        ctes = {**ctes, cte.alias.casefold(): _levels(cte.this, ctes)}
    if isinstance(query, exp.SetOperation):
        return max(_levels(query.left, ctes), _levels(query.right, ctes))
    if not isinstance(query, exp.Select):
        return _levels(query.this, ctes) if isinstance(query, exp.Subquery) else 0
    own = _own_levels(query, ctes)
    levels = own + max((_levels(source, ctes) for source in _sources(query)), default=0)
    if own and levels > MOST_LEVELS:
        raise NotOnSail("syntax", "nested")
    return own if query.args.get("group") is not None else levels  # nothing is merged beyond a GROUP BY


def _sources(query: exp.Select) -> Iterator[Any]:
    if query.args.get("from_") is not None:
        yield query.args["from_"].this
    for join in query.args.get("joins") or ():
        yield join.this


def _own_levels(query: exp.Select, ctes: Mapping[str, int]) -> int:
    sources, most = list(_sources(query)), 0
    nodes: list[tuple[Any, int]] = [
        (part, 0) for part in query.iter_expressions() if not isinstance(part, exp.With | exp.From)
    ]
    while nodes:
        node, level = nodes.pop()
        if isinstance(node, exp.Query):
            level += _levels(node, ctes)
        elif isinstance(node, exp.Cast) and isinstance(node.this.unnest(), exp.Binary):
            level += 1
        most = max(most, level)
        if not isinstance(node, exp.Query):
            nodes += [(part, level) for part in node.iter_expressions() if not any(part is item for item in sources)]
    return most
