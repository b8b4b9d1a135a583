"""One DAG: its versions, which is active, and the jobs of one of them with what they read, write and have waiting."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.errors import NotFound
from tracelake.store.queries import queries


@dataclass(frozen=True)
class VersionShown:
    dag_version_id: UUID
    yaml_hash: str
    yaml: str
    active: bool
    created_at: datetime
    deployed_by: str | None
    """E-mail, or else the subject of the identity provider."""


@dataclass(frozen=True)
class JobShown:
    id: UUID
    name: str
    activation: str
    runtime: str
    operator: str
    source_kind: str | None
    source_state: str | None
    """Of an always-on source."""
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    queued: int
    in_flight: int
    """Queued with a wake-up, or running."""
    oldest_seconds: float | None
    """How long the oldest queued task has waited."""


@dataclass(frozen=True)
class DagShown:
    name: str
    active_version: UUID | None
    versions: Sequence[VersionShown]
    """The newest first."""
    version: UUID
    """Whose jobs these are: the one asked for, else the active one, else the newest."""
    jobs: Sequence[JobShown]


async def show_dag(control: Control, org_id: UUID, dag_name: str, version_id: UUID | None = None) -> DagShown:
    sql = queries("dags")
    versions = [VersionShown(**row) for row in await control.pool.fetch(sql["show_versions"], org_id, dag_name)]
    if not versions:
        raise NotFound(f"no DAG {dag_name!r}", where="dag")
    active = next((item.dag_version_id for item in versions if item.active), None)
    shown = version_id or active or versions[0].dag_version_id
    if shown not in {item.dag_version_id for item in versions}:
        raise NotFound(f"DAG {dag_name!r} has no such version", where=str(shown))
    jobs = [_job(row) for row in await control.pool.fetch(sql["show_jobs"], org_id, shown)]
    return DagShown(dag_name, active, versions, shown, jobs)


def _job(row: asyncpg.Record) -> JobShown:
    values = dict(row)
    for column in ("inputs", "outputs"):
        values[column] = json.loads(values[column] or "[]")
    return JobShown(**values)
