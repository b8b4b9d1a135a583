"""Messages of the user API about datasets, and about batches that the sink refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from tracelake.wire.message import Message
from tracelake.wire.user.fields import Edge, Limit, Name, PlainText


class InvalidateRequest(Message, frozen=True):
    """Of a range, with both its ends, or of a partition with a label."""

    reason: PlainText
    start: Edge | None = None
    end: Edge | None = None
    partition: PlainText | None = None
    request_id: UUID | None = None


class InvalidateAnswer(Message, frozen=True):
    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    created: bool
    """False: the same request had been made before."""


class DropAnswer(Message, frozen=True):
    dataset_uuid: UUID
    generations: int
    """How many are removed now; 0: it had no files."""


class DeadBatchRow(Message, frozen=True):
    """A batch that the sink refused."""

    publish_id: UUID
    dataset_uuid: UUID
    dataset: str | None
    dag: str
    task_id: UUID
    attempt: int
    batch_uri: str
    content_type: str
    line: int | None
    """Of the batch, from 1; a row's number where it is not made of lines. None: it is about the batch as a whole."""
    reason: str
    replays: int
    published_at: datetime
    died_at: datetime


class DatasetRow(Message, frozen=True):
    dataset_uuid: UUID
    name: str | None
    visibility: str
    dag: str
    job: str | None
    """None: the DAG declares it, and any of its jobs may write it."""
    output_index: int | None
    storage: str
    last_commit: int | None
    committed_at: datetime | None
    dead_batches: int
    """Batches for it that the sink refused."""


class DatasetList(Message, frozen=True):
    datasets: list[DatasetRow]


class GenerationRow(Message, frozen=True):
    dataset_version: UUID
    current: bool
    """The active version of its DAG serves this one."""
    storage_location: str
    config_hash: str
    created_at: datetime
    partitions: int
    rows: int | None
    bytes: int | None
    ranges: list[tuple[int, int]]
    """Current blocks, both ends inclusive, merged."""
    last_commit: int | None = None
    """Its last commit; None: it has none."""


class DatasetCommit(Message, frozen=True):
    commit: int
    dataset_version: UUID
    task_id: UUID
    attempt: int
    scope: str
    rows: int | None
    bytes: int | None
    committed_at: datetime


class LineageRow(Message, frozen=True):
    column: str
    input_dataset_uuid: UUID
    input: str
    """Its name; if it has none, its DAG and job."""
    input_column: str
    """`*`: any of them."""


class PublishedRange(Message, frozen=True):
    """A range that a task registered by `datasets_published`: the location of its files, and its configuration."""

    dataset_version: UUID
    """The range's own."""
    generation: UUID
    start: int
    end: int
    storage_location: str
    storage_glob: str
    config_hash: str
    published_at: datetime


class DatasetDetail(DatasetRow, frozen=True):
    read_roles: list[str]
    generations: list[GenerationRow]
    lineage: list[LineageRow]
    """What its columns are made from, in the active version of its DAG; empty where the operator does not know it."""
    commits: list[DatasetCommit]
    """The last ones, newest first."""
    newest_dead_batches: list[DeadBatchRow]
    """`dead_batches` is the number of all."""
    published_ranges: int
    newest_published_ranges: list[PublishedRange]
    unique_key: list[str] = []
    """The columns that identify a row, by its job or operator; empty: not known."""


class FilePartition(Message, frozen=True):
    partition_key: str
    commit: int
    location: str
    files: list[Any]
    """Name, rows, bytes and sha256 of each; the name is within the location."""
    start: int | None = None
    end: int | None = None
    rows: int | None = None


class DatasetFiles(Message, frozen=True):
    dataset_version: UUID
    commit: int
    """As of which it is: the last one."""
    columns: list[Any] | None
    partitions: list[FilePartition]


class DeadBatchQuery(Message, frozen=True):
    dataset: Name | None = None
    before: UUID | None = None
    limit: Limit = 50


class DeadBatchList(Message, frozen=True):
    batches: list[DeadBatchRow]
    next: UUID | None
    total: int
    """Of all pages."""


class ReplayRequest(Message, frozen=True):
    batch: bytes | None = None
    """The repaired batch, in base64, of the same content type; none: the stored one is retried."""


class ReplayAnswer(Message, frozen=True):
    publish_id: UUID
    batch_uri: str
