"""Reads generations, their partitions and files, and the Parquet copies of hot datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.domain.ranges import Range
from tracelake.errors import SnapshotTooOld
from tracelake.store.queries import Row, fetch_rows, find_row, queries
from tracelake.wire.task.outputs import PartitionFiles


class GenerationHead(Row, frozen=True):
    columns: list[Mapping[str, Any]] | None = None
    last_commit: int = 0
    hot: bool = False


class StoredPartition(Row, frozen=True):
    partition_key: str
    location: str
    files: list[Mapping[str, Any]]
    commit: int
    start: int | None
    end: int | None
    row_count: int | None
    files_removed_at: datetime | None

    def as_message(self) -> PartitionFiles:
        return PartitionFiles(
            partition_key=self.partition_key,
            location=self.location,
            files=self.files,
            commit=self.commit,
            start=self.start,
            end=self.end,
            row_count=self.row_count,
        )


@dataclass(frozen=True)
class ColdCopy:
    """The Parquet copy of a hot generation: these generations of one dataset, as of a commit."""

    generations: tuple[UUID, ...]
    commit: int


class CopiedGeneration(Row, frozen=True):
    hot_version: UUID
    generations: list[UUID]
    commit: int


async def generation_head(pool: asyncpg.Pool, version: UUID) -> GenerationHead:
    """Empty for a generation that does not exist."""
    return await find_row(pool, queries("files")["find_head"], GenerationHead, version) or GenerationHead()


async def partitions_at(
    pool: asyncpg.Pool, generations: Sequence[UUID], commit: int, span: Range | None = None
) -> list[StoredPartition]:
    ends = (span.start, span.stop) if span else (None, None)
    return await fetch_rows(pool, queries("files")["list_partitions"], StoredPartition, generations, commit, *ends)


def refuse_removed(partitions: Sequence[StoredPartition], commit: int) -> None:
    """Refuses a snapshot if any of its files have been deleted."""
    removed = next((partition for partition in partitions if partition.files_removed_at is not None), None)
    if removed is not None:
        raise SnapshotTooOld(
            f"commit {commit} needs partition {removed.partition_key} as it was, whose files were removed"
            f" {removed.files_removed_at:%Y-%m-%d}",
            where=f"commit {commit}",
            hint="read at a later commit; setting dispatcher.replaced_kept_days says how long they stay",
        )


async def cold_copies(pool: asyncpg.Pool, hot_versions: Sequence[UUID]) -> Mapping[UUID, ColdCopy]:
    """By hot generation, for those that a compaction copies.

    A changed compaction starts a new generation, and the hot table stays. Files that were compacted before are in the
    former generation; together they are the copy. Where several hold a number, the latest commit counts.
    """
    if not hot_versions:
        return {}
    rows = await fetch_rows(pool, queries("relations")["list_cold_copies"], CopiedGeneration, list(hot_versions))
    return {row.hot_version: ColdCopy(tuple(row.generations), row.commit) for row in rows}
