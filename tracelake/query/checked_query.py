"""A query that may be asked: who asks, what it reads, how much it may have. Everything in it was checked."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from tracelake.domain.filter.parse import Filter
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.ranges import Range
from tracelake.domain.sql.gate import CheckedSql
from tracelake.wire.markers import ColumnEntry

Pin = tuple[UUID, int]
"""A generation as of a commit: what it holds never changes."""


class FileFacts(NamedTuple):
    bytes: int
    rows: int
    numbers: tuple[int, int] | None
    """The least and the greatest block number in it; None: not known."""


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
    """More files, by the numbers of which their rows count: another generation has replaced the rest of them."""
    facts: Mapping[ObjectName, FileFacts] = field(default_factory=dict)
    narrowed: bool = False
    """Only some of them, those that a query can need."""

    @property
    def key(self) -> Hashable:
        """What a view of them is known by: all files of a pin, or these."""
        return (self.pin, self.files, tuple(self.cut.items())) if self.narrowed else self.pin

    @property
    def in_one_go(self) -> bool:
        """Whether one task reads them all sooner than several would: between several, rows must be exchanged."""
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
    """The DAG's: a row is there if it passes one of them, or if there are none."""


@dataclass(frozen=True)
class Caller:
    """On whose behalf. `grant` is what a session belongs to: never two askers, never two attempts."""

    org_id: UUID
    grant: Hashable
    user_id: UUID | None = None
    task_id: UUID | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class CheckedQuery:
    id: UUID
    caller: Caller
    checked: CheckedSql
    relations: Mapping[str, Relation]
    """By the names that the query uses; no others."""
    max_rows: int
    seconds: float
    """How long it may run."""
    answer_within: float | None = None
    """How long its caller waits for the answer, its turn and Spark's start included; None: as long as it takes."""
    export: Folder | None = None
    files: int = 1

    @property
    def small(self) -> bool:
        """Whether its files are so few bytes that planning ahead costs more than it saves."""
        return sum(relation.cold.bytes for relation in self.relations.values() if relation.cold) <= SMALL_BYTES


SMALL_BYTES: Final = 64 * 1024 * 1024
ONE_GO_BYTES: Final = 4 * 1024 * 1024
"""Measured on two cores: a GROUP BY over 1 MB takes half the time in one task, over 4 MB the same, over 10 MB more."""
ONE_GO_ROWS: Final = 400_000
ONE_GO_FILES: Final = 8
"""They are opened one after the other, which takes its time where they are far away."""
