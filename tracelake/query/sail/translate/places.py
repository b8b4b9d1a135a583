"""Questions about a part of a query, of which Sail gives the same as Spark in some places or forms only."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Final

from sqlglot import exp

from tracelake.query.sail.translate.types import NotOnSail

PATTERN: Final = re.compile(r"(?s)(?:[^\\]|\\[%_\\])*")
LOGIC: Final = (exp.And, exp.Or, exp.Not, exp.Paren)
MOST_EQUALS: Final = 2
ROW_FRAMES: Final = frozenset({"UNBOUNDED", "CURRENT ROW"})


def check_frame(spec: Any) -> None:
    """Refuse frames of a RANGE of values."""
    if spec is None or spec.args.get("kind") == "ROWS":
        return
    if not {spec.args.get("start"), spec.args.get("end")} <= ROW_FRAMES:
        raise NotOnSail("syntax", "range")


def has_one_meaning(nodes: list[Any]) -> bool:
    """Return whether doubles are compared with a number as it is written that is not zero.

    Columns may become keys of a join, in which Sail finds other equals. Files of which Spark reads a part only, by
    their dictionaries, have no -0.0 for it where it looks for 0.0.
    """
    numbers = [node.unnest() for node in nodes if isinstance(node.unnest(), exp.Literal)]
    return any(not number.is_string and float(number.name) != 0 for number in numbers)


def only_selects(node: Any) -> bool:
    """Return whether rows for which it is NULL are left out like those for which it is false: Sail has no such NULL."""
    parent = node.parent
    while isinstance(parent, exp.And | exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Where)


def is_pattern(node: Any) -> bool:
    """Return whether it is a pattern as it is written, in which a backslash stands before what it may stand before."""
    return isinstance(node, exp.Literal) and PATTERN.fullmatch(node.name) is not None


def refuse_merged_lists(tree: Any) -> None:
    """Refuse several lists of one value where it matters that they are NULL and not false.

    Sail merges `x IN (1, 2) AND x IN (3)`, also if they are written with `=`, into what is false for a NULL too.
    """
    found: defaultdict[tuple[int, str], list[Any]] = defaultdict(list)
    lists = list(tree.find_all(exp.In, exp.EQ, exp.NEQ))
    for node in lists if len(lists) > 1 else ():
        for value in (node.this, node.expression if isinstance(node, exp.Binary) else None):
            if value is not None and value.find(exp.Column):
                found[id(_whole_condition(node)), value.sql("spark")].append(node)
    for nodes in found.values():
        several = len(nodes) > (1 if any(isinstance(node, exp.In) for node in nodes) else MOST_EQUALS)
        if several and not all(map(_is_false_if_null, nodes)):
            raise NotOnSail("syntax", "lists")


def _whole_condition(node: Any) -> Any:
    while isinstance(node.parent, LOGIC):
        node = node.parent
    return node


def _is_false_if_null(node: Any) -> bool:
    """Return whether the rows for which it is NULL are left out in any case."""
    if isinstance(node.parent, exp.Not):
        return only_selects(node.parent)
    parent = node.parent
    while isinstance(parent, exp.And | exp.Or | exp.Paren):
        parent = parent.parent
    return isinstance(parent, exp.Where)
