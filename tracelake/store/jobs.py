"""Loads and caches jobs. A job belongs to one DAG version and never changes.

What may change is left out: the published names of datasets, and whether a bootstrap was done. A claim reads those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import msgspec

from tracelake.domain.bundle.rules import DEFAULT_HANDLER
from tracelake.errors import NotFound
from tracelake.store.queries import Connection, Queryable, queries

MAX_JOBS = 10_000


@dataclass(frozen=True, slots=True)
class StoredOutput:
    output_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    storage_location: str
    kind: str


@dataclass(frozen=True, slots=True)
class JobBundle:
    """The code that a job runs; a ready bundle never changes."""

    name: str
    sha256: str
    kind: Literal["python", "node", "bootstrap"]
    size_bytes: int
    location: str
    handler: str


@dataclass(frozen=True, slots=True)
class StoredJob:
    id: UUID
    org_id: UUID
    dag_name: str
    name: str
    runtime: str
    operator: str
    config: Mapping[str, Any]
    bundle: JobBundle | None
    secrets: list[str]
    timeout_seconds: int | None
    heartbeat_interval_seconds: int
    heartbeat_timeout_seconds: int
    outputs: tuple[StoredOutput, ...]


class JobCache:
    """By id; bounded, because versions accumulate."""

    def __init__(self, database: Queryable) -> None:
        self._database = database
        self._jobs: dict[UUID, StoredJob] = {}

    def through(self, connection: Connection) -> JobCache:
        """The same jobs, for a caller that holds a connection and must not wait for another."""
        cache = JobCache(connection)
        cache._jobs = self._jobs
        return cache

    async def get(self, job_id: UUID) -> StoredJob:
        job = self._jobs.get(job_id)
        if job is None:
            job = await load_job(self._database, job_id)
            if len(self._jobs) >= MAX_JOBS:
                self._jobs.pop(next(iter(self._jobs)))
            self._jobs[job_id] = job
        return job


async def load_job(database: Queryable, job_id: UUID) -> StoredJob:
    text = await database.fetchval(queries("jobs")["load_job"], job_id, DEFAULT_HANDLER)
    if text is None:
        raise NotFound("no such job", where=str(job_id))
    return msgspec.json.decode(text, type=StoredJob)
