"""Messages of the user API about DAGs and their sources."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.domain.event import MAX_CURSOR
from tracelake.wire.message import Message
from tracelake.wire.user.fields import Edge, PlainText
from tracelake.wire.user.limits import LimitUse


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
    state: str | None
    """Of a reactive job: `Running` while tasks of it are queued or run, else `Idle`."""
    oldest_seconds: float | None
    """How long the oldest queued task has waited."""
    paused: bool
    """It gets no new tasks: `GET /v1/pauses` says why."""
    held: int
    """Events and invalidations that wait until it is resumed."""


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
    """How many of those became tasks of the same job in the new version."""


class DeactivateAnswer(Message, frozen=True):
    dag_name: str
    former: UUID | None
    """The version that was active before."""
    changed: bool
    """False: no version was active."""
    canceled_tasks: int


class DeleteDagQuery(Message, frozen=True):
    dry_run: bool = False
    """Only count what would be removed, or say why it is refused."""


class DeleteDagAnswer(Message, frozen=True):
    dag_name: str
    changed: bool
    """False: it was a dry run, or the DAG had been deleted before."""
    versions: int
    jobs: int
    """Of all versions."""
    generations: int
    """Generations of files that are removed."""
    partitions: int
    bytes: int
    tables: list[str]
    """Datasets whose rows are in Postgres tables: these stay."""


class TriggerRequest(Message, frozen=True):
    """At most one of cursor, partition and range; none of them: something is new."""

    cursor: Annotated[int, Meta(ge=0, le=MAX_CURSOR)] | None = None
    partition: PlainText | None = None
    start: Edge | None = None
    end: Edge | None = None
    request_id: UUID | None = None
    """Yours, so that a repeated call is known as one; left out, each call is a new one."""


class TriggerAnswer(Message, frozen=True):
    request_id: UUID
    event_ids: list[UUID]
    """One for each output of a source that only emits events; the same ones for the same request."""
    created: bool
    """False: the same request had been made before."""
    task_id: UUID | None = None
    """The task of the source; None where it only emits events."""


class PausedJob(Message, frozen=True):
    """A cause for which a job gets no new tasks; a job with several causes is there once for each."""

    dag: str
    job: str
    reason: str
    """`depth`, `age`, `manual`, or `failure` (`pause_on_failure`)."""
    because: str
    """The reason in words."""
    cause: str | None
    """The job whose queue reached its limit, as `DAG.JOB`; none for a manual pause."""
    threshold: float | None
    """That limit: tasks, or seconds."""
    observed: float | None
    """What was measured when it was reached."""
    since: datetime
    held: int
    """How many events and invalidations wait for this job to be resumed."""


class PauseList(Message, frozen=True):
    pauses: list[PausedJob]


class InFlight(Message, frozen=True):
    """The organisation's tasks of one operator on one runtime that have not ended; always-on sources are left out."""

    operator: str
    runtime: str
    woken: int
    """Those that a worker can claim."""
    running: int
    waiting: int
    """Those that wait for a slot of their job, operator or runtime."""
    operator_limit: int | None
    """How many of the operator may be woken or run at once, of all organisations."""
    runtime_limit: int | None
    """The same of the runtime."""


class RpcPoolUse(Message, frozen=True):
    """What workers use of the limits of a pool of nodes, of all organisations."""

    pool: str
    workers: int
    """Those that have a share."""
    used: int
    """Requests under way, as the workers last said."""
    leased: int
    """Requests that they may have under way."""
    limit: int
    """`max_concurrency` of the pool."""
    leased_rate: float | None
    """Calls a second that they may send to each node."""
    limit_rate: float | None
    """`requests_per_second` of the pool; None: no limit."""


class CatchingUp(Message, frozen=True):
    """A DAG whose jobs have not processed yet what their inputs held when its version became active."""

    dag: str
    since: datetime
    """When that was, or when a version of a DAG that it reads became active."""
    tasks: int
    """Those of the past that have not ended."""


class InFlightList(Message, frozen=True):
    in_flight: list[InFlight]
    rpc_pools: list[RpcPoolUse] = []
    jobs_running: int = 0
    """Reactive jobs of active versions of which tasks are queued or run."""
    jobs_idle: int = 0
    """The others."""
    org_limits: list[LimitUse] = []
    """Of the organisation, where it has any, for tasks and for what it stores."""
    catching_up: list[CatchingUp] = []
    """DAGs that are behind since an activation, a promotion or a rollback."""


class ProgressQuery(Message, frozen=True):
    downstream: bool = False
    """Whether all tasks count that follow from the results of others, or only those that the trigger itself created."""


class TriggerFailure(Message, frozen=True):
    id: UUID
    dag: str
    job: str
    status: Literal["Failed", "Canceled"]
    reason: str | None


class TriggerProgress(Message, frozen=True):
    """Whoever waits for a trigger reads this again until `ended` is true."""

    request_id: UUID
    downstream: bool
    ended: bool
    """Whether nothing is left to wait for."""
    succeeded: bool
    """Whether it has ended, all tasks are completed, and no event or batch was given up."""
    tasks: int
    queued: int
    """Those that wait for another attempt too."""
    running: int
    completed: int
    """Those too whose work a later task of the job did with its own."""
    failed: int
    """For good, or canceled."""
    waiting_events: int
    """Not routed to the jobs that they trigger yet."""
    failed_events: int
    """Given up: `trace outbox retry`."""
    waiting_batches: int
    """On their way to the sink; counted only downstream."""
    dead_batches: int
    """Refused by the sink: `trace sink dead`."""
    failures: list[TriggerFailure]
    """The first of `failed`."""


class PauseAnswer(Message, frozen=True):
    dag: str
    job: str
    paused: bool
    """As it is now."""
    changed: bool
    """False: it was so before."""
