"""Messages about the outputs of a task: events, files, and its completion."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from tracelake.domain.text.redaction import redact_tokens
from tracelake.wire.message import ErrorCode, Fenced, LongText, Message, Number, ShortText
from tracelake.wire.task.lifecycle import MAX_CLAIMS, TaskProgress

Summary = Annotated[bytes, msgspec.Meta(min_length=1, max_length=2048)]
"""Named here: in a class that has a field `bytes`, that name is not the type."""
MAX_EVENTS = 10_000


MAX_COMPLETION_BYTES = 16 * 1024 * 1024
"""A single completion: as many partitions as it may have events, each with its file."""


class EventBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: Number | None = None
    partition_key: ShortText | None = None
    start: Number | None = None
    end: Number | None = None


class InvalidationBody(Message, frozen=True):
    """Of a range, or of a partition with a label."""

    dataset_uuid: UUID
    dataset_version: UUID
    reason: ShortText
    start: Number | None = None
    end: Number | None = None
    partition_key: ShortText | None = None
    cause: ShortText | None = None
    """What it follows from, such as the hash of the block that took over. A task that runs long must say it: its next
    reorg of the same range is another one only by its cause."""


class EventsRequest(Fenced, frozen=True):
    events: Annotated[list[EventBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    invalidations: Annotated[list[InvalidationBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    state: Mapping[str, Any] | None = None
    """Durable operator state, saved with them or not at all: a source that is lost continues from here."""


class EventsAnswer(Message, frozen=True):
    accepted: int
    """How many of them were new."""


class FilesRequest(Fenced, frozen=True):
    """Which files hold a dataset that the task reads, as of its pinned commit, or one that it writes, as of now."""

    dataset_uuid: UUID
    start: Number | None = None
    end: Number | None = None
    """Only partitions that touch this range; both or neither."""


class PartitionFiles(Message, frozen=True):
    partition_key: str
    location: str
    files: list[Mapping[str, Any]]
    commit: int
    start: int | None = None
    end: int | None = None
    row_count: int | None = None


class FilesAnswer(Message, frozen=True):
    dataset_version: UUID
    commit: int
    columns: list[Mapping[str, Any]] | None = None
    """Name and type of each; None before the first commit."""
    partitions: list[PartitionFiles] = []


class OutputBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    output_index: Number | None = None
    location: ShortText | None = None
    cursor: Number | None = None
    partition_key: ShortText | None = None
    start: Number | None = None
    end: Number | None = None
    row_count: Number | None = None
    bytes: Number | None = None
    schema_hash: ShortText | None = None
    files: list[Mapping[str, Any]] = []
    over: Number | None = None
    """The dataset's last commit when what this replaces was read: refused if any of that was committed later."""
    column_hashes: dict[ShortText, ShortText] | None = None
    """Of each column of the partition's files, by its name in small letters: equal hashes, equal values in the same
    order. Jobs that read none of the columns that changed use their files again. None: not known."""
    addresses: Summary | None = None
    """A Bloom filter of the partition's column `address`, of a power of two of bytes. Jobs that list addresses use
    their files again where no other listed one is. None: not known."""


class StorageRef(Message, frozen=True):
    scheme: Literal["s3"]
    bucket: ShortText
    prefix: ShortText
    glob: ShortText = "*.parquet"


class PublishedBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: StorageRef
    config_hash: ShortText | None = None
    range_start: Number | None = None
    range_end: Number | None = None


class CompleteRequest(Fenced, frozen=True):
    status: Literal["Completed", "Failed", "Canceled"]
    events: Annotated[list[EventBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    invalidations: Annotated[list[InvalidationBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    outputs: list[OutputBody] = []
    datasets_published: list[PublishedBody] = []
    state: Mapping[str, Any] | None = None
    """Durable operator state, saved with the completion."""
    error_message: LongText | None = None
    retryable: bool = True
    error_code: ErrorCode | msgspec.UnsetType = msgspec.UNSET
    """Of a failure: the code of the error that ended it. Where that is the platform's (`busy`, `unavailable`, ...), the
    attempt does not count against the job's `max_attempts`."""
    progress: TaskProgress | None = None
    """The final progress; None: unchanged."""
    requests: Number = 0
    """Calls to chain nodes that the attempt made, however it ended."""

    def __post_init__(self) -> None:
        if self.error_message:
            msgspec.structs.force_setattr(self, "error_message", redact_tokens(self.error_message))


class CompleteAnswer(Message, frozen=True):
    status: Literal["Completed", "Failed", "Canceled"]
    next_retry_at: datetime | None = None
    commits: dict[UUID, int] | None = None
    """By dataset, the commit of its outputs; outputs that were superseded have none."""


class CompleteItem(Message, frozen=True):
    """One of several completions, with the token that a single one has in its header."""

    capability_token: str
    completion: CompleteRequest


class CompleteBatchRequest(Message, frozen=True):
    """Completions of several tasks that ended together, each handled by itself, answered in their order."""

    items: Annotated[list[CompleteItem], msgspec.Meta(min_length=1, max_length=MAX_CLAIMS)]


class CompleteOutcome(Message, frozen=True):
    """What a single completion would get: an answer, or an error."""

    answer: CompleteAnswer | None = None
    error: Mapping[str, Any] | None = None


class CompleteBatchAnswer(Message, frozen=True):
    outcomes: list[CompleteOutcome]
