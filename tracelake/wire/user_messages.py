"""The messages of the user API. `user_calls.py` says which call takes and returns which of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.domain.event import MAX_CURSOR
from tracelake.domain.ids import ID_PREFIX
from tracelake.domain.ranges import MAX_END
from tracelake.wire.task_messages import Message, Progress

MAX_PAGE = 500

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
# Postgres' text holds no NUL.
Text = Annotated[str, Meta(min_length=1, max_length=1000, pattern="^[^\\x00]*$")]
Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,127}$")]
IdPrefix = Annotated[str, Meta(pattern=ID_PREFIX)]
Edge = Annotated[int, Meta(ge=0, le=MAX_END)]
RowId = Annotated[int, Meta(ge=0, le=2**63 - 1)]

MAX_BUNDLE_BODY = 256 * 1024 * 1024
"""More than any system may be set to take."""
BundleKind = Literal["python", "node", "bootstrap"]
TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
Fault = Literal["job", "platform"]
OutboxStatus = Literal["Pending", "Processing", "Failed"]


class Version(Message, frozen=True):
    dag_version_id: UUID
    yaml_hash: str
    active: bool
    created_at: datetime
    deployed_by: str | None = None
    """E-mail, or else the subject of the identity provider."""


class DagRow(Message, frozen=True):
    name: str
    active_version: UUID | None
    versions: int
    jobs: int
    """Of the active version; of the newest while none is active."""
    updated_at: datetime
    """When it was last deployed or activated."""


class DagList(Message, frozen=True):
    dags: list[DagRow]


class JobRow(Message, frozen=True):
    name: str
    activation: str
    runtime: str
    operator: str
    source: str | None
    """The kind of source, if it is one."""
    source_state: str | None
    """Of an always-on source."""
    inputs: list[str]
    outputs: list[str]
    queued: int
    in_flight: int
    """Queued with a wake-up, or running."""
    oldest_seconds: float | None
    """How long the oldest queued task has waited."""


class DagDetail(Message, frozen=True):
    name: str
    active_version: UUID | None
    versions: list[Version]
    """The newest first."""
    shown_version: UUID
    """Whose jobs and YAML these are: the active one, or the newest while none is active."""
    jobs: list[JobRow]
    yaml: str


class VersionList(Message, frozen=True):
    versions: list[Version]


class DeployRequest(Message, frozen=True):
    yaml: str


class DagWarning(Message, frozen=True):
    """A field of a DAG that was accepted and has no effect. Line and column count from 1."""

    line: int
    column: int
    field: str
    """A path such as `jobs[2].priority`."""
    reason: str
    suggestion: str | None
    code: str


class DeployAnswer(Message, frozen=True):
    dag_version_id: UUID
    dag_name: str
    yaml_hash: str
    created: bool
    """False: this very version was deployed before."""
    jobs: list[str]
    datasets: list[UUID]
    warnings: list[DagWarning]


class ActivateRequest(Message, frozen=True):
    dag_version_id: UUID


class ActivateAnswer(Message, frozen=True):
    dag_name: str
    dag_version_id: UUID
    former: UUID | None
    """The version that was active before."""
    changed: bool
    canceled_tasks: int
    """Of the version that left."""
    made_again: int
    """How many of those live on as tasks of the same job in the new version."""


class TriggerRequest(Message, frozen=True):
    """At most one of cursor, partition and range; none of them: something is new."""

    cursor: Annotated[int, Meta(ge=0, le=MAX_CURSOR)] | None = None
    partition: Text | None = None
    start: Edge | None = None
    end: Edge | None = None
    request_id: UUID | None = None
    """Yours, so that a repeated call is known as one; left out, each call is a new one."""


class TriggerAnswer(Message, frozen=True):
    request_id: UUID
    event_ids: list[UUID]
    """One for each output of the source; the same ones for the same request."""
    created: bool
    """False: the same request had been made before."""


class InvalidateRequest(Message, frozen=True):
    start: Edge
    end: Edge
    reason: Text
    request_id: UUID | None = None


class InvalidateAnswer(Message, frozen=True):
    invalidation_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    created: bool
    """False: the same request had been made before."""


class LogsQuery(Message, frozen=True):
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Unset: the current one."""
    first: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """How many of the first lines are known already."""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class TaskLine(Message, frozen=True):
    n: int
    at: datetime
    level: str
    text: str


class TaskLines(Message, frozen=True):
    task_id: UUID
    attempt: int
    ended: bool
    """Whether the attempt is over: there will be no more."""
    lines: list[TaskLine]


class TasksQuery(Message, frozen=True):
    status: TaskStatus | None = None
    dag: Name | None = None
    job: Name | None = None
    before: UUID | None = None
    """The `next` of the page before."""
    prefix: IdPrefix | None = None
    """Only tasks whose id begins like this."""
    limit: Limit = 50


class TaskRow(Message, frozen=True):
    id: UUID
    dag: str
    job: str
    status: TaskStatus
    attempt: int
    max_attempts: int
    platform_failures: int
    """Attempts that the platform ended: they count against a limit of their own, not against `max_attempts`."""
    partitions: list[str] | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    next_retry_at: datetime | None
    worker: str | None
    reason: str | None
    """Why it failed or was canceled."""
    fault: Fault | None
    """Of a failed task: whose fault the last failure was."""
    dead_batches: int
    """Of what it published: batches that the sink refused."""


class TaskList(Message, frozen=True):
    tasks: list[TaskRow]
    next: UUID | None
    """Give it as `before` to go on; none: that was all."""


class FailedTasks(Message, frozen=True):
    """What has failed for good within a day."""

    failed: int
    newest: list[TaskRow]
    """The last of them; `GET /v1/tasks` has them all."""


class AttemptRow(Message, frozen=True):
    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    fault: Fault | None
    """Of a failure: whose it was. One of the platform's does not count against `max_attempts`."""
    late: bool
    error: str | None


class InputRow(Message, frozen=True):
    attempt: int
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    partition: str
    commit: int | None


class CommitRow(Message, frozen=True):
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    commit: int
    attempt: int
    rows: int | None
    bytes: int | None
    committed_at: datetime


class EventRow(Message, frozen=True):
    id: UUID
    origin: str
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    scope: str
    commit: int | None
    producer_task_id: UUID | None
    created_at: datetime
    routed_at: datetime | None


class InvalidationRow(Message, frozen=True):
    id: UUID
    dataset: str
    dataset_uuid: UUID
    scope: str
    reason: str
    producer_task_id: UUID | None
    created_at: datetime


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


class BatchCounts(Message, frozen=True):
    """What has become of the batches that a task published."""

    accepted: int
    """On their way to the sink."""
    committed: int
    dead: int


class TaskDetail(Message, frozen=True):
    id: UUID
    dag: str
    job: str
    operator: str
    runtime: str
    dag_version_id: UUID
    status: TaskStatus
    priority: str
    attempt: int
    max_attempts: int
    platform_failures: int
    max_platform_failures: int
    fault: Fault | None
    timeout_seconds: int | None
    dedupe_key: str | None
    partitions: list[str] | None
    created_at: datetime
    queued_at: datetime
    woken_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    lease_expires_at: datetime | None
    last_heartbeat: datetime | None
    next_retry_at: datetime | None
    worker: str | None
    progress: Progress | None
    error: str | None
    cancel_reason: str | None
    superseded_by: UUID | None
    """The later task that did its work too: of a job that makes its whole output anew, the newest update is enough."""
    memoized_from: UUID | None
    event: EventRow | None
    invalidation: InvalidationRow | None
    attempts: list[AttemptRow]
    inputs: list[InputRow]
    commits: list[CommitRow]
    batches: BatchCounts
    dead_batches: list[DeadBatchRow]
    """The newest ones; `batches.dead` says how many there are."""
    outputs: Any


class RetryAnswer(Message, frozen=True):
    task_id: UUID
    attempt: int
    """The one that was asked for."""


class CancelRequest(Message, frozen=True):
    reason: Text


class CancelAnswer(Message, frozen=True):
    task_id: UUID
    changed: bool
    """False: it had been canceled before."""


class PauseAnswer(Message, frozen=True):
    dag: str
    job: str
    paused: bool
    """As it is now."""
    changed: bool
    """False: it was so before."""


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
    """Blocks in force, both ends inclusive, merged."""


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
    """A range that a task registered by `datasets_published`: where its files lie, by which configuration."""

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
    """What its columns are made from, as the active version of its DAG says; empty where the job is not SQL."""
    commits: list[DatasetCommit]
    """The last ones, newest first."""
    newest_dead_batches: list[DeadBatchRow]
    """`dead_batches` says how many there are."""
    published_ranges: int
    newest_published_ranges: list[PublishedRange]


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


class OutboxQuery(Message, frozen=True):
    status: OutboxStatus | None = None
    before: RowId | None = None
    limit: Limit = 50


class OutboxRow(Message, frozen=True):
    id: int
    kind: str
    status: OutboxStatus
    attempts: int
    payload: Any
    last_error: str | None
    created_at: datetime
    available_at: datetime


class OutboxList(Message, frozen=True):
    rows: list[OutboxRow]
    next: int | None


class OutboxRetryRequest(Message, frozen=True):
    ids: Annotated[list[RowId], Meta(min_length=1, max_length=10_000)] | None = None
    """None: all that were given up."""


class OutboxRetryAnswer(Message, frozen=True):
    retried: list[int]


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
    """The repaired batch, in base64, of the same content type; none: the one that lies there is tried again."""


class ReplayAnswer(Message, frozen=True):
    publish_id: UUID
    batch_uri: str


class BundleRequest(Message, frozen=True):
    """A zip of user code that is to be uploaded."""

    name: Name
    kind: BundleKind
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    size_bytes: Annotated[int, Meta(ge=1, le=MAX_BUNDLE_BODY)]


class BundleRow(Message, frozen=True):
    id: UUID
    name: str
    kind: BundleKind
    sha256: str
    size_bytes: int
    status: Literal["Pending", "Ready", "Refused"]
    """Announced; checked and usable; found wanting."""
    reason: str | None
    """Why it was refused."""
    created_at: datetime
    finalized_at: datetime | None
    created_by: str | None


class UploadRef(Message, frozen=True):
    """How to send the bytes, before `finalize`."""

    method: Literal["PUT"]
    path: str
    content_type: str
    most_bytes: int


class BundleAnswer(BundleRow, frozen=True, kw_only=True):
    upload: UploadRef | None = None
    """None: nothing is to be sent, since this content is ready."""
    entry_points: list[str]
    """What a handler may name before its last dot."""


class BundlesQuery(Message, frozen=True):
    name: Name | None = None
    before: UUID | None = None
    limit: Limit = 50


class BundleList(Message, frozen=True):
    bundles: list[BundleRow]
    next: UUID | None


class WhyQuery(Message, frozen=True):
    """`task`, or `dataset`; with `partition`, that one of the dataset."""

    task: UUID | None = None
    dataset: Text | None = None
    partition: Text | None = None


class Step(Message, frozen=True):
    """One link of the chain, from cause to effect."""

    kind: Literal["event", "invalidation", "rule", "task", "attempt", "commit", "batch", "promise"]
    at: datetime | None
    sentence: str
    id: str | None = None


class Stop(Message, frozen=True):
    """Where the chain ends before a commit: the rule, and what to do about it."""

    rule: str
    sentence: str
    since: datetime | None = None
    hint: str | None = None


class Explanation(Message, frozen=True):
    subject: str
    verdict: str
    steps: list[Step]
    stopped: Stop | None
