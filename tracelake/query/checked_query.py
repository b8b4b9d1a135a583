"""A query whose caller, tables and limits were checked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.filter.tree import Filter
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.ranges import Range
from tracelake.domain.sql.gate import CheckedSql
from tracelake.wire.internal.queries import QueryLimits
from tracelake.wire.task.markers import ColumnEntry

Pin = tuple[UUID, int]
"""A generation as of a commit; its rows never change."""


class FileFacts(NamedTuple):
    bytes: int
    rows: int
    numbers: tuple[int, int] | None
    """Its smallest and largest block number; None: not known."""


@dataclass(frozen=True)
class ColdFiles:
    """The files of a generation, or of the cold side of a hot one, as of a commit."""

    pin: Pin
    columns: tuple[ColumnEntry, ...] | None
    """None: nothing was ever committed."""
    files: tuple[ObjectName, ...]
    bytes: int
    rows: int
    cut: Mapping[tuple[Range, ...], tuple[ObjectName, ...]] = field(default_factory=dict)
    """More files, with the block numbers whose rows count: another generation has replaced their other rows."""
    facts: Mapping[ObjectName, FileFacts] = field(default_factory=dict)
    narrowed: bool = False
    """The same, with some of the files: those that a query can need."""

    @property
    def key(self) -> Hashable:
        """Identifies a view of them: all files of a pin, or these."""
        return (self.pin, self.files, tuple(self.cut.items())) if self.narrowed else self.pin

    @property
    def in_one_go(self) -> bool:
        """Whether one task reads them faster than several, between which rows must be exchanged."""
        return (
            self.bytes <= ONE_GO_BYTES and self.rows <= ONE_GO_ROWS and len(self.files) <= ONE_GO_FILES and not self.cut
        )


@dataclass(frozen=True)
class Relation:
    """One table as the caller may read it."""

    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    commit: int
    hot: bool
    cold: ColdFiles | None
    filters: tuple[Filter, ...] = ()
    """The filters of the DAG: a row is visible if it passes any of them, or if there are none."""
    hot_columns: tuple[ColumnEntry, ...] | None = None
    """Of a hot table, once it was looked up in Postgres."""
    behind: int | None = None
    """As in `ReadDataset`."""

    @property
    def columns(self) -> tuple[ColumnEntry, ...]:
        """In Spark's types; none where they are not known yet."""
        cold = self.cold.columns if self.cold is not None else None
        return (self.hot_columns if self.hot else cold) or ()


NO_LIMITS: Final = QueryLimits()


@dataclass(frozen=True)
class Caller:
    """On whose behalf a query runs. A session belongs to one `grant`: never to two callers or two attempts."""

    org_id: UUID
    grant: Hashable
    user_id: UUID | None = None
    task_id: UUID | None = None
    attempt: int | None = None
    priority: Priority = Priority.NORMAL
    """Of a task."""
    limits: QueryLimits = NO_LIMITS
    """Of the organisation."""


@dataclass(frozen=True)
class CheckedQuery:
    id: UUID
    caller: Caller
    checked: CheckedSql
    relations: Mapping[str, Relation]
    """Only the tables that the query uses, by name."""
    max_rows: int
    seconds: float
    """How long it may run."""
    answer_within: float | None = None
    """How long the caller waits for the answer, including the wait for a slot and for Spark; None: no limit."""
    export: Folder | None = None
    files: int = 1

    @property
    def small(self) -> bool:
        """Whether its files are so small that adaptive planning costs more than it saves."""
        return sum(relation.cold.bytes for relation in self.relations.values() if relation.cold) <= SMALL_BYTES


SMALL_BYTES: Final = 64 * 1024 * 1024
ONE_GO_BYTES: Final = 4 * 1024 * 1024
"""Measured on two cores: a GROUP BY over 1 MB takes half the time in one task, over 4 MB the same, over 10 MB more."""
ONE_GO_ROWS: Final = 400_000
ONE_GO_FILES: Final = 8
"""They are opened one after the other, which is slow on a remote store."""
