"""Messages of the user API about DAGs and their sources."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from msgspec import Meta

from tracelake.domain.event import MAX_CURSOR
from tracelake.wire.message import Message
from tracelake.wire.user_fields import Edge, Text


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
    """How many of those became tasks of the same job in the new version."""


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


class PauseAnswer(Message, frozen=True):
    dag: str
    job: str
    paused: bool
    """As it is now."""
    changed: bool
    """False: it was so before."""
