"""Messages of the user API about tasks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.task.lifecycle import TaskProgress, TaskStatus
from tracelake.wire.user.datasets import DeadBatchRow
from tracelake.wire.user.fields import IdPrefix, Limit, Name, PlainText

FailureFault = Literal["job", "platform"]


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
    skipped_attempts: int
    """Numbers that a restore from a backup skipped: there were no such attempts."""
    partitions: list[str] | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    next_retry_at: datetime | None
    worker: str | None
    reason: str | None
    """Why it failed or was canceled."""
    fault: FailureFault | None
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
    fault: FailureFault | None
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
    unchanged: int
    """How many partitions it wrote with the content that they had already: their readers got no tasks."""
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
    skipped_attempts: int
    max_platform_failures: int
    fault: FailureFault | None
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
    progress: TaskProgress | None
    error: str | None
    cancel_reason: str | None
    superseded_by: UUID | None
    """The later task that did its work too: of a job that makes its whole output anew, the newest update is enough."""
    history: bool
    """It was created to catch up with data that was there before, or by an event of such a task."""
    node_requests: int
    """Calls to chain nodes of all attempts that reported their end."""
    bytes_written: int
    """Bytes of the files that it committed."""
    memoized_from: UUID | None
    event: EventRow | None
    invalidation: InvalidationRow | None
    attempts: list[AttemptRow]
    inputs: list[InputRow]
    commits: list[CommitRow]
    batches: BatchCounts
    dead_batches: list[DeadBatchRow]
    """The newest ones; `batches.dead` is the number of all."""
    outputs: Any


class RetryAnswer(Message, frozen=True):
    task_id: UUID
    attempt: int
    """The one that was asked for."""


class CancelRequest(Message, frozen=True):
    reason: PlainText


class CancelAnswer(Message, frozen=True):
    task_id: UUID
    changed: bool
    """False: it had been canceled before."""


class ManyTasksRequest(Message, frozen=True):
    """Which tasks; at least one of the filters is needed."""

    dag: Name | None = None
    job: Name | None = None
    dry_run: bool = False
    """Only count them."""


class CancelManyRequest(ManyTasksRequest, frozen=True):
    reason: PlainText = "canceled manually"
    status: TaskStatus | None = None


class ManyTasksAnswer(Message, frozen=True):
    changed: int
    left: int
    """How many there are still: a call changes some thousand."""
