"""Messages of the user API about plans and releases: what a change rebuilds, and versions that are built beside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user.diff import TypeChange
from tracelake.wire.user.fields import PlainText

MAX_DAGS = 100
Cause = Literal["added", "removed", "edited", "upstream", "metadata", "unchanged"]
Action = Literal["build", "reuse", "carry on", "drop"]
ReleaseState = Literal["Building", "Ready", "Serving", "Standby", "Retired", "Abandoned"]


class PlanRequest(Message, frozen=True):
    dags: Annotated[list[str], Meta(min_length=1, max_length=MAX_DAGS)]
    """The YAML of each DAG that changes."""


class PlannedDag(Message, frozen=True):
    dag: str
    cause: Literal["added", "edited", "upstream", "unchanged"]
    """`upstream`: the same file, read again because a dataset of another DAG gets a new generation."""
    dag_version_id: UUID
    former: UUID | None
    """The active version."""


class UnreadChange(Message, frozen=True):
    """An input of a job that changes only in columns that the job does not read."""

    input: str
    changed: list[str]
    """Its columns that change; none: its rows stay as they are."""
    read: list[str] | None
    """The columns that can decide what the job writes, whether the input has them or not; None: any."""


class PlannedDataset(Message, frozen=True):
    dag: str
    job: str | None
    """None: declared by the DAG."""
    dataset: str
    """The published name, or else `job[output]`."""
    cause: Cause
    """`metadata`: the file has changed, in nothing that decides the rows of this dataset."""
    action: Action
    """`reuse`: an earlier generation serves again, and catches up; or, with `unread`, no task has to run, because the
    files of the active generation are used for the new one."""
    generation: UUID | None
    former: UUID | None
    partitions: int
    """Of the active generation, or of what the job of a new dataset reads: about as many are to be built."""
    reused: int
    """Partitions that the generation has already, or whose files are expected to be used again."""
    rows: int
    bytes: int
    """Of the active generation: about as much is to be built."""
    ranges: list[str]
    """The first ranges of blocks that are to be built; none: partitions without blocks, or nothing is known."""
    more_ranges: int
    """How many others there are."""
    seconds: float | None
    """About how long its tasks run, one after the other, as those of the active version did; None: none has run."""
    requests: int | None
    """About how many calls to chain nodes its tasks make, as those of the active version did; None: none has run."""
    readers: list[str]
    """Jobs of other DAGs that read it, as `dag.job`."""
    users: int
    """Who have queried it within 30 days."""
    unread: list[UnreadChange] = []
    """Why the files of the active generation are expected to be used again: what changes in its inputs is not read."""


class Plan(Message, frozen=True):
    hash: str
    """Equal while nothing has changed that the plan is about."""
    changes: bool
    """False: every version is active already."""
    dags: list[PlannedDag]
    datasets: list[PlannedDataset]
    warnings: list[str]


class ReleaseRequest(Message, frozen=True):
    dags: Annotated[list[str], Meta(min_length=1, max_length=MAX_DAGS)]
    """The YAML of each DAG that changes."""
    plan: PlainText | None = None
    """The hash of the plan that this carries out; it is refused if anything has changed since."""
    when_ready: bool = False
    """Promote it as soon as it is ready."""


class ReleaseMember(Message, frozen=True):
    dag: str
    dag_version_id: UUID
    former: UUID | None
    """The version that a rollback makes active again."""
    planned: int
    """Units of its inputs that its jobs process."""
    done: int
    failed: int
    """Of these, with a task that failed or was canceled for good: `trace task retry` continues."""


ComparisonState = Literal["Idle", "Waiting", "Running", "Done", "Failed", "Skipped"]


class ColumnShare(Message, frozen=True):
    column: str
    equal: int | None
    """In how many keys that both sides have the values are equal; None: without a key."""
    share: float | None
    """Of these keys."""


class ReleaseDiff(Message, frozen=True):
    """How what a release has built (B) differs from what serves (A): figures, without values of rows."""

    former_commit: int | None
    """Of A; None: it had none."""
    commit: int | None
    """Of B."""
    rows_a: int
    rows_b: int
    key: list[str]
    """Empty: whole rows were compared."""
    note: str | None
    """Why it was compared otherwise than one would expect."""
    only_a: int
    """Keys, or without a key rows, that only this side has."""
    only_b: int
    changed: int
    """With a key: keys that both have, with other values."""
    equal: int
    schema: list[TypeChange]
    """Columns that only one side has, or that have two types. They are not compared."""
    columns: list[ColumnShare]
    start: int | None = None
    end: int | None = None
    """The blocks that were compared; None: all rows."""


class ReleaseComparison(Message, frozen=True):
    """A dataset that the former and the new version have, in two generations."""

    dag: str
    dataset: str
    """The published name, or else `job[output]`."""
    dataset_uuid: UUID
    former: UUID
    """The generation that serves: side A."""
    generation: UUID
    """The one that the release builds: side B."""
    state: ComparisonState
    """`Idle`: nobody has asked for it. `Skipped`: its rows are in a Postgres table."""
    limits: dict[str, int | str]
    """`cutover` of its job."""
    is_current: bool
    """Nothing was committed to either side since."""
    steps: int
    """Queries that were answered, of `steps_planned`; while it is `Running`."""
    steps_planned: int
    compared_at: datetime | None
    result: ReleaseDiff | None
    """The last one. `Waiting` and `Running`: the one before."""
    error: str | None
    exceeded: list[str]
    """The limits that the result exceeds, with its figures."""


class ReleaseRow(Message, frozen=True):
    id: UUID
    state: ReleaseState
    dags: list[str]
    when_ready: bool
    created_at: datetime
    created_by: str | None
    ready_at: datetime | None
    promoted_at: datetime | None
    message: str | None
    """Why it was abandoned, or cannot be promoted."""


class ReleaseDetail(Message, frozen=True):
    release: ReleaseRow
    members: list[ReleaseMember]
    """Progress is of a release that is being built."""
    open_tasks: int
    comparisons: list[ReleaseComparison] = []


class ReleaseList(Message, frozen=True):
    releases: list[ReleaseRow]


class ReleaseAnswer(Message, frozen=True):
    plan: Plan
    release: ReleaseRow | None
    """None: there was nothing to change."""


class PromoteRequest(Message, frozen=True):
    force: bool = False
    """Also if it is not ready, or exceeds a limit: what is missing is built afterwards."""


class SwitchAnswer(Message, frozen=True):
    release: ReleaseRow
    """`Ready` after a promotion: it is promoted as soon as its datasets have been compared."""
    versions: dict[str, UUID]
    """The versions that are active now, by DAG."""
    canceled_tasks: int
