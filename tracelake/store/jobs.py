"""Jobs as the Dispatcher needs them. A job never changes, as it belongs to one DAG version: read once and kept.

What may change is not here: the published names of datasets, and whether a bootstrap was done. A claim reads those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import asyncpg

from tracelake.domain.bundle.rules import DEFAULT_HANDLER
from tracelake.errors import NotFound
from tracelake.store.queries import queries

Connection = asyncpg.pool.PoolConnectionProxy
KEPT_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class JobOutput:
    output_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    storage_location: str
    kind: str


@dataclass(frozen=True, slots=True)
class JobBundle:
    """The code that a job runs. One that is ready never changes."""

    name: str
    sha256: str
    kind: Literal["python", "node", "bootstrap"]
    size_bytes: int
    location: str
    handler: str


@dataclass(frozen=True, slots=True)
class Job:
    id: UUID
    org_id: UUID
    dag_name: str
    name: str
    dag_version_id: UUID
    runtime: str
    operator: str
    activation: str
    config: Mapping[str, Any]
    config_hash: str
    source: Mapping[str, Any] | None
    bootstrap: Mapping[str, Any] | None
    update_strategy: str
    unique_key: list[str] | None
    bundle: JobBundle | None
    secrets: list[str]
    timeout_seconds: int | None
    heartbeat_interval_seconds: int
    heartbeat_timeout_seconds: int
    retry_backoff_seconds: int
    retry_backoff_max_seconds: int
    max_platform_failures: int
    max_concurrency: int | None
    outputs: tuple[JobOutput, ...]

    @property
    def restarts(self) -> bool:
        """An always-on source: what follows a failure is decided by the loop that keeps sources running."""
        return self.source is not None and self.source["kind"] == "always_on"


class JobCache:
    """By id, for ever; bounded, because versions pile up."""

    def __init__(self, database: asyncpg.Pool | Connection) -> None:
        self._database = database
        self._jobs: dict[UUID, Job] = {}

    def through(self, connection: Connection) -> JobCache:
        """The same jobs, read by a caller that holds a connection: whoever holds one must not wait for another."""
        other = JobCache(connection)
        other._jobs = self._jobs
        return other

    async def get(self, job_id: UUID) -> Job:
        found = self._jobs.get(job_id)
        if found is None:
            found = await load_job(self._database, job_id)
            if len(self._jobs) >= KEPT_JOBS:
                self._jobs.pop(next(iter(self._jobs)))
            self._jobs[job_id] = found
        return found


async def load_job(database: asyncpg.Pool | Connection, job_id: UUID) -> Job:
    row = await database.fetchrow(queries("jobs")["load_job"], job_id)
    if row is None:
        raise NotFound("no such job", where=str(job_id))
    values = dict(row)
    for column in ("config", "source", "bootstrap"):
        values[column] = json.loads(values[column]) if values[column] else None
    values["outputs"] = tuple(_output(load) for load in json.loads(values["outputs"] or "[]"))
    values["bundle"] = _bundle(values)
    return Job(**values)


def _bundle(values: dict[str, Any]) -> JobBundle | None:
    told = {name: values.pop(f"bundle_{name}") for name in ("name", "sha256", "kind", "size_bytes", "location")}
    handler, bundle_id = values.pop("udf_handler"), values.pop("udf_bundle_id")
    return None if bundle_id is None else JobBundle(**told, handler=handler or DEFAULT_HANDLER)


def _output(text: Mapping[str, Any]) -> JobOutput:
    return JobOutput(
        output_index=text["output_index"],
        dataset_uuid=UUID(text["dataset_uuid"]),
        dataset_version=UUID(text["dataset_version"]),
        storage_location=text["storage_location"],
        kind=text["kind"],
    )
