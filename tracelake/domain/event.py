"""What an event changes, and the keys by which a repeated event is recognised (S9).

An event is about all of a dataset generation up to a cursor, about one partition of it, or about the whole. Its scope
key is the part of its identity that says which. Dedupe keys of tasks are made from it: the plain key the first time,
and the plain key plus its cause (an invalidation, or the commit it was read from) every later time, so that the same
partition can run again for a new reason and never twice for the same one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import assert_never

from tracelake.domain.ids import (
    DatasetId,
    DatasetVersion,
    EventId,
    TaskId,
    event_id,
)
from tracelake.domain.ranges import (
    InvalidRange,
    Range,
    format_partition_key,
    inclusive,
    is_partition_key,
    parse_partition_key,
)
from tracelake.errors import InvalidRequest

MAX_CURSOR = 2**63 - 1

# No ':' (it separates the parts of keys), no '/' (partition keys become path segments), no blanks, no dot in front.
_LABEL = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9._=+-]{0,199}")


@dataclass(frozen=True, slots=True)
class CursorScope:
    """Everything up to and including the cursor."""

    cursor: int


@dataclass(frozen=True, slots=True)
class RangeScope:
    """One partition that is a range of numbers; its key is `{start}-{end}`."""

    span: Range


@dataclass(frozen=True, slots=True)
class LabelScope:
    """One partition with a name of its own, such as `2025-12-31`."""

    label: str


@dataclass(frozen=True, slots=True)
class WholeScope:
    """The dataset, all of it."""


Scope = CursorScope | RangeScope | LabelScope | WholeScope
PartitionScope = RangeScope | LabelScope


@dataclass(frozen=True, slots=True)
class Event:
    dataset: DatasetId
    version: DatasetVersion
    scope: Scope

    def id_from(self, producer: TaskId) -> EventId:
        return event_id(producer, self.dataset, self.version, scope_key(self.scope))


def read_scope(
    *, cursor: int | None = None, partition_key: str | None = None, start: int | None = None, end: int | None = None
) -> Scope:
    """From the four optional fields of the wire; InvalidRequest names the one at fault."""
    if cursor is not None:
        return _cursor(cursor, alone=partition_key is None and start is None and end is None)
    if start is None and end is None:
        return WholeScope() if partition_key is None else _partition(partition_key)
    if start is None or end is None:
        missing = "/start" if start is None else "/end"
        raise InvalidRequest("a range needs both its start and its end", where=missing)
    return RangeScope(_range(start, end, partition_key))


def read_partition(
    *, partition_key: str | None = None, start: int | None = None, end: int | None = None
) -> PartitionScope:
    """As `read_scope`, of what must be a partition: a range, or a label."""
    scope = read_scope(partition_key=partition_key, start=start, end=end)
    if not isinstance(scope, RangeScope | LabelScope):
        raise InvalidRequest("a range or a partition is needed", where="/start", hint="start and end, or a partition")
    return scope


def partition_key(scope: Scope) -> str | None:
    """The wire's and the tasks' name of the partition; None where the scope is not one."""
    match scope:
        case RangeScope(span):
            return format_partition_key(span)
        case LabelScope(label):
            return label
        case CursorScope() | WholeScope():
            return None
        case _:
            assert_never(scope)


def scope_key(scope: Scope) -> str:
    match scope:
        case CursorScope(cursor):
            return f"cursor:{cursor}"
        case RangeScope(span):
            return f"partition:{format_partition_key(span)}"
        case LabelScope(label):
            return f"partition:{label}"
        case WholeScope():
            return "whole"
        case _:
            assert_never(scope)


def _cursor(cursor: int, *, alone: bool) -> CursorScope:
    if not alone:
        raise InvalidRequest("an event has a cursor or a partition, not both", where="/cursor")
    if not 0 <= cursor <= MAX_CURSOR:
        raise InvalidRequest(f"a cursor is a number from 0 to {MAX_CURSOR}", where="/cursor")
    return CursorScope(cursor)


def _partition(key: str) -> RangeScope | LabelScope:
    if is_partition_key(key):
        return RangeScope(parse_partition_key(key))
    if _LABEL.fullmatch(key) is None:
        raise InvalidRequest(
            f"{key[:80]!r} is not a partition key",
            where="/partition_key",
            hint="start-end, or up to 200 letters, digits and . _ = + -",
        )
    return LabelScope(key)


def _range(start: int, end: int, key: str | None) -> Range:
    try:
        span = inclusive(start, end)
    except InvalidRange as refusal:
        raise InvalidRequest(refusal.message, where="/start", hint=refusal.hint) from None
    if key is not None and key != format_partition_key(span):
        raise InvalidRequest(
            f"the partition key {key[:80]!r} names another range than start and end",
            where="/partition_key",
            hint=f"both ends are inclusive: {format_partition_key(span)}",
        )
    return span
