"""Messages of the user API about the differences between a dataset at two commits."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message, Number

Side = Annotated[str, Meta(min_length=1, max_length=36)]
KeyColumns = Annotated[str, Meta(min_length=1, max_length=2_000)]


class DiffQuery(Message, frozen=True):
    a: Side | None = None
    """A commit, or a generation by the beginning of its id: as of its last commit. Unset: what is served."""
    b: Side | None = None
    """As `a`. Unset: the newest other generation that has later commits than `a`; else the last commit of what is
    served, which is then compared with the one before it."""
    release: UUID | None = None
    """Instead of `a` and `b`: what serves, and what this release has built."""
    key: KeyColumns | None = None
    """Columns that identify a row, with commas between them. Unset: those that the dataset is known by; if there are
    none, or they do not identify a row, whole rows are compared."""
    start: Number | None = None
    end: Number | None = None
    """Only rows whose block_number is in this range; both or neither."""
    rows: Annotated[int, Meta(ge=0, le=100)] = 10
    """How many differing rows to show."""


class DiffSide(Message, frozen=True):
    commit: int
    dataset_version: UUID
    rows: int
    """With the rows of files that both sides have."""


class TypeChange(Message, frozen=True):
    column: str
    a: str | None
    """Its type; None: the side has no such column."""
    b: str | None


class ColumnDiff(Message, frozen=True):
    column: str
    equal: int | None
    """With a key: in how many keys that both sides have the values are equal."""
    share: float | None
    """Of these keys; None: without a key, or if there are none."""
    sum_a: float | None
    """Of numbers, in the rows that were read."""
    sum_b: float | None


class DiffRow(Message, frozen=True):
    kind: Literal["only_a", "only_b", "changed"]
    a: list[Any] | None
    """Values in the order of `columns`; None: the side has no such row."""
    b: list[Any] | None


class DiffAnswer(Message, frozen=True):
    dataset: str
    dataset_uuid: UUID
    a: DiffSide
    b: DiffSide
    schema: list[TypeChange]
    """Columns that only one side has, or that have two types. They are not compared."""
    not_compared: list[str]
    """Columns that both have and whose values cannot be compared, such as maps."""
    key: list[str]
    """Empty: whole rows were compared."""
    note: str | None
    """Why the columns that the dataset is known by were not used."""
    shared_rows: int
    """Rows in files that both sides have: equal, and not read."""
    only_a: int
    """Keys, or without a key rows, that only this side has."""
    only_b: int
    equal: int
    """Keys with equal values in all compared columns, or rows, that both have; with the shared ones."""
    changed: int
    """With a key: keys that both have, with other values."""
    columns: list[ColumnDiff]
    differing: list[DiffRow]
