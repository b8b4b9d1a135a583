"""Messages about batches for buffered datasets, from a task to the Dispatcher and from it to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from tracelake.wire.message import AttemptNumber, Fenced, LongText, Message, Number, ShortText

MAX_BATCHES = 1_000


class BufferPublishRequest(Fenced, frozen=True):
    """Both revisions of the contract in one (S2)."""

    batch_uri: ShortText
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None
    record_count: Number | None = None
    content_type: ShortText = "application/jsonl"
    batch_size_bytes: Number | None = None
    dedupe_scope: ShortText | None = None


class BufferPublishAnswer(Message, frozen=True):
    publish_id: UUID


class BufferRecord(Message, frozen=True):
    """The Dispatcher's record of a batch, which the sink trusts. A queue's message only names the publish."""

    publish_id: UUID
    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: AttemptNumber
    batch_uri: str
    folder: str
    """The folder of this attempt's batches: nothing outside of it is read for it."""
    content_type: str
    status: Literal["Accepted", "Committed", "Dead"]
    created_at: datetime
    record_count: int | None = None
    batch_size_bytes: int | None = None


class BufferTable(Message, frozen=True):
    """A buffered dataset as its table is to be."""

    dataset_uuid: UUID
    dataset_version: UUID
    org_id: UUID
    name: str
    declaration: Mapping[str, Any]


class BufferRequest(Message, frozen=True):
    publish_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCHES)] = []
    datasets: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCHES)] = []
    """Also those whose table is asked for without a batch."""


class BufferAnswer(Message, frozen=True):
    records: list[BufferRecord]
    """Those that there are."""
    tables: list[BufferTable]
    """Of their datasets and of those asked for, as far as they are declared."""


class CommittedBatch(Message, frozen=True):
    publish_id: UUID
    seq: Number
    rows: Number
    bytes: Number


class DeadBatch(Message, frozen=True):
    publish_id: UUID
    reason: LongText
    line: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None


class SettleRequest(Message, frozen=True):
    """The outcomes of batches. Idempotent."""

    committed: Annotated[list[CommittedBatch], msgspec.Meta(max_length=MAX_BATCHES)] = []
    dead: Annotated[list[DeadBatch], msgspec.Meta(max_length=MAX_BATCHES)] = []


class SettleAnswer(Message, frozen=True):
    settled: int
    """How many were new."""
