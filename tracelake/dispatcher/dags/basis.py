"""Finds what the generations of a new version are derived from, beside its YAML: the active version, and other DAGs.

A job that is written otherwise with the same meaning keeps the hash that it has in the active version. Datasets of
other DAGs count with the generation that the active version was derived from, so that an edit rebuilds only what it
changes; a release replaces those that get a new generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.hashes import Basis, config_hash, foreign_names
from tracelake.domain.dag.model import Dag, Job
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import ConfigHash, DatasetName, DatasetVersion, JobName
from tracelake.errors import InvalidDag
from tracelake.store.queries import Queryable, Row, fetch_rows, find_row, queries

Generations = Mapping[DatasetName, DatasetVersion]


class ActiveVersion(Row, frozen=True):
    id: UUID
    yaml: str
    yaml_hash: str
    foreign_generations: dict[str, UUID]
    config_hashes: dict[str, str]
    """By job."""
    foreign_names: list[str]
    """The datasets of other DAGs that its jobs read."""


class ServedDataset(Row, frozen=True):
    name: str
    dataset_version: UUID


async def find_basis(
    database: Queryable, org_id: UUID, dag: Dag, known: Catalog, new: Generations | None = None
) -> Basis:
    """`new`: generations that a release gives to datasets of other DAGs."""
    active = await find_row(database, queries("dags")["find_active_version"], ActiveVersion, org_id, dag.name)
    foreign = await _foreign(database, org_id, dag, active, new or {})
    hashes = {} if active is None else await asyncio.to_thread(_kept_hashes, dag, active, known)
    return Basis(hashes, foreign)


async def _foreign(
    database: Queryable, org_id: UUID, dag: Dag, active: ActiveVersion | None, new: Generations
) -> Generations:
    names = sorted({name for job in dag.jobs for name in foreign_names(job)})
    if not names:
        return {}
    sql = queries("dags")["list_served_generations"]
    served = {row.name: row.dataset_version for row in await fetch_rows(database, sql, ServedDataset, org_id, names)}
    if active is not None:
        for name in active.foreign_names:
            served.pop(name, None)
        served |= active.foreign_generations
    served |= {str(name): generation for name, generation in new.items()}
    return {DatasetName(name): DatasetVersion(served[name]) for name in names if name in served}


def _kept_hashes(dag: Dag, active: ActiveVersion, known: Catalog) -> Mapping[JobName, ConfigHash]:
    """The hashes of jobs that are written otherwise than in the active version, with the same meaning."""
    rewritten = [job for job in dag.jobs if _is_rewritten(dag, job, active, known)]
    if not rewritten:
        return {}
    try:
        former = parse_dag(active.yaml, replace(known, declared={}, deployed=True))
    except InvalidDag:  # since it was deployed, something that it refers to has gone
        return {}
    jobs = {job.name: job for job in former.jobs}
    return {
        job.name: ConfigHash(active.config_hashes[job.name])
        for job in rewritten
        if job.name in jobs and _canonical_hash(dag, job, known) == _canonical_hash(former, jobs[job.name], known)
    }


def _is_rewritten(dag: Dag, job: Job, active: ActiveVersion, known: Catalog) -> bool:
    former, operator = active.config_hashes.get(job.name), known.operators.get(job.operator)
    if former is None or operator is None or operator.canonical is None:
        return False
    return config_hash(job, dag.tuning.get(job.operator, ())) != former


def _canonical_hash(dag: Dag, job: Job, known: Catalog) -> ConfigHash:
    operator = known.operators.get(job.operator)
    config = job.config if operator is None or operator.canonical is None else operator.canonical(job.config)
    return config_hash(replace(job, config=config), dag.tuning.get(job.operator, ()))
