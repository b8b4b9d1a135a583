"""Messages of the user API about plans and releases: what a change rebuilds, and versions that are built beside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.message import Message
from tracelake.wire.user_fields import Text

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


class PlannedDataset(Message, frozen=True):
    dag: str
    job: str | None
    """None: declared by the DAG."""
    dataset: str
    """The published name, or else `job[output]`."""
    cause: Cause
    """`metadata`: the file has changed, in nothing that decides the rows of this dataset."""
    action: Action
    """`reuse`: an earlier generation serves again, and catches up."""
    generation: UUID | None
    former: UUID | None
    partitions: int
    """Of the active generation: about as many are to be built."""
    reused: int
    """Partitions that the generation has already."""
    rows: int
    bytes: int
    """Of the active generation: about as much is to be built."""
    seconds: float | None
    """About how long its tasks run, one after the other, as those of the active version did; None: none has run."""
    readers: list[str]
    """Jobs of other DAGs that read it, as `dag.job`."""
    users: int
    """Who have queried it within 30 days."""


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
    plan: Text | None = None
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


class ReleaseList(Message, frozen=True):
    releases: list[ReleaseRow]


class ReleaseAnswer(Message, frozen=True):
    plan: Plan
    release: ReleaseRow | None
    """None: there was nothing to change."""


class PromoteRequest(Message, frozen=True):
    force: bool = False
    """Also if it is not ready: what is missing is built afterwards."""


class SwitchAnswer(Message, frozen=True):
    release: ReleaseRow
    versions: dict[str, UUID]
    """The versions that are active now, by DAG."""
    canceled_tasks: int
