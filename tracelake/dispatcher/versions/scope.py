"""Finds the jobs that a user names: a DAG, `DAG.JOB`, or a dataset, which stands for the jobs that write it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from tracelake.domain.text.suggest import closest, nearest
from tracelake.errors import Conflict, NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Queryable, Row, fetch_column, fetch_rows, queries


class KnownJob(Row, frozen=True):
    """A DAG, and one of the jobs of its active version, if it has one."""

    dag_name: str
    active: bool
    job_name: str | None
    source: str | None


class DatasetWriter(Row, frozen=True):
    dag_name: str
    job_name: str


@dataclass(frozen=True)
class JobsOfDag:
    dag: str
    job: str | None = None


async def find_scopes(database: Queryable, user: User, name: str) -> Sequence[JobsOfDag]:
    dag, _, job = name.partition(".")
    known = await list_known(database, user.org_id)
    if any(row.dag_name == dag for row in known):
        require_job(known, dag, job or None)
        return [JobsOfDag(dag, job or None)]
    writers = [] if job else await _writers(database, user, name)
    if writers:
        return [JobsOfDag(writer.dag_name, writer.job_name) for writer in writers]
    datasets = await fetch_column(database, queries("catch_up")["list_dataset_names"], *user.reads_as)
    hint = nearest(name, [*{row.dag_name for row in known}, *datasets])
    raise NotFound(f"no DAG or dataset {name!r}", where="of", hint=hint or "`trace dag list` and `trace dataset list`")


async def list_known(database: Queryable, org_id: UUID) -> list[KnownJob]:
    return await fetch_rows(database, queries("catch_up")["list_names"], KnownJob, org_id)


def require_job(known: Sequence[KnownJob], dag: str, job: str | None) -> list[KnownJob]:
    """The jobs of the active version of the DAG, or that one of them."""
    of_dag = [row for row in known if row.dag_name == dag]
    if not of_dag:
        hint = closest(dag, {row.dag_name for row in known})
        raise NotFound(f"no DAG {dag!r}", where="dag", hint=hint or "deploy it first")
    if not of_dag[0].active:
        raise Conflict(f"DAG {dag!r} is not active", where=dag, hint="activate a version of it")
    jobs = {row.job_name: row for row in of_dag if row.job_name}
    if job is not None and job not in jobs:
        raise NotFound(f"DAG {dag!r} has no job {job!r}", where=f"{dag}.{job}", hint=closest(job, filter(None, jobs)))
    return [jobs[job]] if job is not None else list(jobs.values())


async def _writers(database: Queryable, user: User, name: str) -> list[DatasetWriter]:
    by_id = None
    with suppress(ValueError):
        by_id = UUID(name)
    return await fetch_rows(database, queries("catch_up")["list_writers"], DatasetWriter, *user.reads_as, by_id, name)
