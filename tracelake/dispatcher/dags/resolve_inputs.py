"""Finds the dataset that each input of a DAG names: one of its own, or one that another DAG publishes."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tracelake.dispatcher.dags.catalog import Published
from tracelake.domain.dag.hashes import dataset_ids, declared_ids
from tracelake.domain.dag.model import Dag, DagInput, DeclaredDataset, ForeignDataset, Job, JobOutput
from tracelake.domain.ids import DatasetId, OrgId
from tracelake.errors import Conflict
from tracelake.store.queries import Connection, fetch_rows, queries

Own = JobOutput | DeclaredDataset


def own_ids(dag: Dag, org: OrgId) -> dict[Own, DatasetId]:
    """The datasets of a DAG: outputs of its jobs, and those that it declares."""
    own: dict[Own, DatasetId] = {DeclaredDataset(name): dataset for name, dataset in declared_ids(dag, org).items()}
    return own | dict[Own, DatasetId](dataset_ids(dag, org).items())


async def input_ids(
    connection: Connection,
    org: OrgId,
    dag: Dag,
    own: Mapping[Own, DatasetId],
    renamed: Mapping[str, UUID] | None = None,
) -> Mapping[DagInput, UUID]:
    """The dataset of each input; a name of another DAG means the dataset that has it now, or gets it (`renamed`)."""
    foreign: dict[str, UUID] = {}
    if any(isinstance(job_input.upstream, ForeignDataset) for job in dag.jobs for job_input in job.inputs):
        published = await fetch_rows(connection, queries("dags")["list_published_datasets"], Published, org)
        foreign = {dataset.name: dataset.id for dataset in published} | dict(renamed or {})
    return {job_input: _input_id(job_input, job, own, foreign) for job in dag.jobs for job_input in job.inputs}


def _input_id(job_input: DagInput, job: Job, own: Mapping[Own, DatasetId], foreign: Mapping[str, UUID]) -> UUID:
    match job_input.upstream:
        case JobOutput() | DeclaredDataset():
            return own[job_input.upstream]
        case ForeignDataset(name) if name in foreign:
            return foreign[name]
        case ForeignDataset(name):
            raise Conflict(
                f"dataset {name!r} is no longer published",
                where=f"jobs.{job.name}.inputs",
                hint="activate the DAG that publishes it, and try again",
            )
