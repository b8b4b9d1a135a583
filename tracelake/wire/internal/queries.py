"""Messages of the Query service, and of its calls to the Dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta, field

from tracelake.domain.flow.pressure import Priority
from tracelake.wire.message import Fenced, Message, Number
from tracelake.wire.task.outputs import PartitionFiles

MAX_SQL = 100_000
MAX_TABLES = 100
MAX_READABLE = 1_000
"""Names among which a suggestion is looked for."""
MAX_AUDIT = 1_000

ARROW = "application/vnd.apache.arrow.stream"
"""The `Accept` for Arrow IPC; the answer's other fields are then in the metadata of its schema, under `trace`."""

Sql = Annotated[str, Meta(min_length=1, max_length=MAX_SQL)]
TableName = Annotated[str, Meta(min_length=1, max_length=128)]
Moment = Number | datetime
"""A commit, or a time: the last commit before it."""
AsOf = Annotated[dict[TableName, Moment], Meta(max_length=MAX_TABLES)]
Place = Annotated[str, Meta(min_length=1, max_length=1024)]


class Export(Message, frozen=True):
    to: Place | None = None
    """For a task: a folder that its token lets it write; unset: one below the first of those."""
    files: Annotated[int, Meta(ge=1, le=256)] = 1


class QueryRequest(Message, frozen=True):
    sql: Sql
    as_of: AsOf = field(default_factory=dict)
    """By table: a commit, or a time. The others are read as they are now (a task: as its claim pinned them)."""
    limit: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    """Rows of the answer at most; if there are more, `truncated` is set."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=86400)] | None = None
    """Less than the service allows; never more."""
    export: Export | None = None
    """The rows as Parquet files instead of in the answer."""


class TaskQueryRequest(Fenced, frozen=True, kw_only=True):
    sql: Sql
    as_of: AsOf = field(default_factory=dict)
    limit: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    timeout_seconds: Annotated[float, Meta(gt=0, le=86400)] | None = None
    export: Export | None = None


class ResultColumn(Message, frozen=True):
    name: str
    type: str
    """As Spark spells it."""


class ReadDataset(Message, frozen=True):
    """What was read, and as of which commit: with it in `as_of`, the same query has the same answer."""

    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    commit: int
    hot: bool = False
    """Its newest rows come from a table, as of the moment of the query."""
    behind: int | None = None
    """How many tasks its DAG has to complete since another version became active; 0: it is not known yet. None: it is
    not behind."""


class Exported(Message, frozen=True):
    location: str
    """The folder. It counts once its `_SUCCESS` is there, which is written last."""
    files: list[str]
    rows: int
    bytes: int


EngineName = Literal["sail", "spark"]


class QueryAnswer(Message, frozen=True):
    query_id: UUID
    columns: list[ResultColumn]
    rows: list[list[Any]]
    """Bytes as 0x..., decimals as text, times in ISO 8601."""
    row_count: int
    truncated: bool
    """There are more rows than the limit."""
    bytes: int
    milliseconds: int
    datasets: list[ReadDataset]
    exported: Exported | None = None
    engine: EngineName = "spark"
    """The engine that ran it."""


class Known(Message, frozen=True):
    """A file list that the caller has already; it is not sent again."""

    dataset_version: UUID
    commit: int


class RelationRequest(Message, frozen=True):
    """One table of a query. A user's is found by its name, a task's by what its token pins."""

    name: TableName
    as_of: Moment | None = None
    dataset_version: UUID | None = None
    commit: Number | None = None


class RelationsRequest(Message, frozen=True):
    """For a user, who is named in the header, or for a running attempt."""

    tables: Annotated[list[RelationRequest], Meta(max_length=MAX_TABLES)]
    known: Annotated[list[Known], Meta(max_length=10 * MAX_TABLES)] = field(default_factory=list)
    task_id: UUID | None = None
    attempt: int | None = None
    lease_token: UUID | None = None
    files: bool = True
    """False: only which tables a user may read, and no lists of files."""


class ColdFilesAnswer(Message, frozen=True):
    """The files of a generation as of a commit, which never change."""

    dataset_version: UUID
    commit: int
    columns: list[Mapping[str, Any]] | None = None
    partitions: list[PartitionFiles] | None = None
    """None: the caller has them."""


class RelationAnswer(Message, frozen=True):
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    commit: int
    hot: bool
    """Its rows, or the newest of them, are in a table of the data database."""
    cold: ColdFilesAnswer | None
    """None: it has no files, nor ever will."""
    filters: list[Mapping[str, Any]] | None = None
    """The caller sees only rows that pass one of these; None: all."""
    behind: int | None = None
    """As in `ReadDataset`."""


class QueryLimits(Message, frozen=True):
    """What the caller's organisation may use; None: no limit of its own."""

    queries: Annotated[int, Meta(ge=1)] | None = None
    queries_waiting: Annotated[int, Meta(ge=1)] | None = None
    query_seconds: Annotated[int, Meta(ge=1)] | None = None
    sessions: Annotated[int, Meta(ge=1)] | None = None
    storage_full: bool = False
    """It stores as much as it may: no exports."""


class RelationsAnswer(Message, frozen=True):
    org_id: UUID
    user_id: UUID | None
    relations: list[RelationAnswer]
    """Those that the caller may read; the others do not exist for it."""
    readable: Annotated[list[str], Meta(max_length=MAX_READABLE)] = field(default_factory=list)
    """What else the user may read, to suggest a name; only where one of those asked for was not found."""
    priority: Priority = Priority.NORMAL
    """Of a task that asks."""
    limits: QueryLimits = field(default_factory=QueryLimits)


Verdict = Literal["answered", "refused", "failed", "canceled"]


class AuditRow(Message, frozen=True):
    """A query, its caller and its datasets. Not its text, which may contain what must not be kept."""

    id: UUID
    org_id: UUID
    asked_at: datetime
    sql_sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    datasets: list[UUID]
    verdict: Verdict
    user_id: UUID | None = None
    task_id: UUID | None = None
    attempt: int | None = None
    code: str | None = None
    """Of the refusal, if it was one."""
    rows: Number = 0
    bytes: Number = 0
    milliseconds: Number = 0


class AuditRequest(Message, frozen=True):
    rows: Annotated[list[AuditRow], Meta(min_length=1, max_length=MAX_AUDIT)]


class AuditAnswer(Message, frozen=True):
    stored: int
    """How many were new."""
