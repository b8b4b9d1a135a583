"""Messages of the user API about the space that a system uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message

Days = Annotated[int, Meta(ge=0, le=36_500)]


class UsageQuery(Message, frozen=True):
    days: Days = 30
    """What keeping for so long would delete."""


class TableUsage(Message, frozen=True):
    table: str
    bytes: int
    """With its indexes."""
    rows: int
    """As statistics know it."""


class GenerationUsage(Message, frozen=True):
    dataset_uuid: UUID
    dataset: str | None
    dag: str
    job: str | None
    dataset_version: UUID
    current: bool
    """An active version serves it."""
    current_bytes: int
    replaced_bytes: int
    """Files of replaced partitions that are still there."""
    current_rows: int
    partitions: int
    week_bytes: int
    """Committed within seven days."""
    week_commits: int


class OldRows(Message, frozen=True):
    kind: str
    rows: int
    bytes: int


class Usage(Message, frozen=True):
    tables: Sequence[TableUsage]
    """Of the state database, of all organisations."""
    generations: Sequence[GenerationUsage]
    """The largest ones of the organisation."""
    days: int
    older: Sequence[OldRows]
    """What is older than `days`; what is still needed of it stays."""
