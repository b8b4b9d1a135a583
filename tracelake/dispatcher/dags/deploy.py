"""A DAG's text becomes a version: jobs, datasets, generations and edges, all of them or none. Next: `dags/activate.py`.

Every id follows from its meaning, so the same text again, or the same text at the same moment, lands on the same rows.
Nothing that is served changes: names and live edges belong to activation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.bundles.check_usable import usable_bundle
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.catalog import catalog, operators
from tracelake.domain.dag.catalog import Wired
from tracelake.domain.dag.hashes import BUFFERED, lineage_hashes
from tracelake.domain.dag.parse import (
    Dag,
    DeclaredDataset,
    ForeignDataset,
    Input,
    Job,
    JobOutput,
    Storage,
    config_hash,
    dataset_ids,
    declared_ids,
    generation_ids,
    parse_dag,
)
from tracelake.domain.filter.parse import as_json
from tracelake.domain.ids import (
    DagVersionId,
    DatasetId,
    DatasetVersion,
    LineageHash,
    OrgId,
    dag_version_id,
    job_id,
)
from tracelake.domain.storage_locations import buffered_table, generation_folder
from tracelake.errors import Conflict, Problem
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

Connection = asyncpg.pool.PoolConnectionProxy
Own = JobOutput | DeclaredDataset


@dataclass(frozen=True)
class Deployed:
    dag_version_id: UUID
    dag_name: str
    yaml_hash: str
    created: bool
    """False: there was a version of this content already, and nothing happened."""
    jobs: Mapping[str, UUID]
    datasets: Mapping[JobOutput, UUID]
    warnings: tuple[Problem, ...] = ()
    """Fields that have no effect."""


async def deploy_dag(control: Control, org_id: UUID, user_id: UUID | None, text: str) -> Deployed:
    dag = await _read(control, org_id, text)
    version = dag_version_id(OrgId(org_id), dag.name, dag.yaml_hash)
    async with control.pool.acquire() as connection, connection.transaction():
        sql = queries("dags")["insert_version"]
        new = await connection.fetchval(sql, version, org_id, dag.name, dag.yaml_hash, text, user_id)
        if new is not None:
            await _Writing(connection, OrgId(org_id), version, dag, control.places.bucket).everything()
        crash_point("deploy_dag.before_commit")
    crash_point("deploy_dag.after_commit")
    return Deployed(
        version,
        dag.name,
        dag.yaml_hash,
        new is not None,
        {job.name: job_id(version, job.name) for job in dag.jobs},
        dataset_ids(dag, OrgId(org_id)),
        dag.warnings,
    )


async def _read(control: Control, org_id: UUID, text: str) -> Dag:
    """The DAG, if it can be deployed: a new version follows the declarations in force, an old one need not."""
    known = await catalog(control.pool, org_id, control.runtimes, control.invokers)
    dag = await asyncio.to_thread(parse_dag, text, replace(known, declared={}))
    if any((dag.name, item.name) in known.declared for item in dag.buffered):
        version = dag_version_id(OrgId(org_id), dag.name, dag.yaml_hash)
        if not await control.pool.fetchrow(queries("dags")["find_version"], org_id, dag.name, version):
            await asyncio.to_thread(parse_dag, text, known)
    return dag


async def input_ids(connection: Connection, org: OrgId, dag: Dag) -> Mapping[Input, UUID]:
    """The dataset behind each input; a name of another DAG is looked up as it stands now."""
    own: dict[Own, DatasetId] = {DeclaredDataset(name): dataset for name, dataset in declared_ids(dag, org).items()}
    own |= dict[Own, DatasetId](dataset_ids(dag, org).items())
    foreign = {row["name"]: row["id"] for row in await connection.fetch(queries("dags")["published_datasets"], org)}
    return {element: _input_id(element, job, own, foreign) for job in dag.jobs for element in job.inputs}


def storage_kinds(dag: Dag) -> Mapping[JobOutput, Storage]:
    """Of the outputs that are datasets of their own."""
    return {
        JobOutput(job.name, output.index): output.storage
        for job in dag.jobs
        for output in job.outputs
        if output.dataset is None
    }


@dataclass(frozen=True)
class _Made:
    """A dataset of the new version."""

    dataset: DatasetId
    generation: DatasetVersion
    kind: Storage
    lineage: LineageHash
    output: JobOutput | None = None
    """None: declared by the DAG, for any of its jobs."""


@dataclass(frozen=True)
class _Writing:
    """The rows of one new version, inside its transaction."""

    connection: Connection
    org: OrgId
    version: DagVersionId
    dag: Dag
    bucket: str

    async def everything(self) -> None:
        await self._datasets()
        inputs = await input_ids(self.connection, self.org, self.dag)
        for job in self.dag.jobs:
            await self._job(job, inputs)

    async def _datasets(self) -> None:
        made, sql = self._made(), queries("dags")
        await self.connection.execute(
            sql["insert_datasets"],
            self.org,
            self.dag.name,
            [item.dataset for item in made],
            [item.output.job if item.output else None for item in made],
            [item.output.output if item.output else None for item in made],
            [str(item.kind) for item in made],
        )
        places = [self._place(item) for item in made]
        await self.connection.execute(
            sql["insert_generations"],
            self.org,
            [item.generation for item in made],
            [item.dataset for item in made],
            [location for location, _ in places],
            [glob for _, glob in places],
            [item.lineage for item in made],
        )
        generations = generation_ids(self.dag, self.org)
        await self.connection.execute(
            sql["insert_pointers"], self.org, self.version, list(generations), list(generations.values())
        )

    def _made(self) -> list[_Made]:
        """Outputs that are datasets of their own, and those that the DAG declares."""
        ids, lineages = dataset_ids(self.dag, self.org), lineage_hashes(self.dag)
        generations = generation_ids(self.dag, self.org)
        own = [
            _Made(ids[output], generations[ids[output]], kind, lineages[output.job], output)
            for output, kind in storage_kinds(self.dag).items()
        ]
        declared = [
            _Made(dataset, generations[dataset], Storage.BUFFERED, BUFFERED)
            for dataset in declared_ids(self.dag, self.org).values()
        ]
        return [*own, *declared]

    def _place(self, item: _Made) -> tuple[str, str | None]:
        """Where a generation lies, and which objects there are its own."""
        if item.kind is Storage.PARQUET:
            return str(generation_folder(self.bucket, item.dataset, item.generation)), "*.parquet"
        if item.output is None:
            return f"postgres_table:{buffered_table(item.generation)}", None
        return f"postgres_table:dataset_{str(item.dataset).replace('-', '_')}", None

    async def _job(self, job: Job, inputs: Mapping[Input, UUID]) -> None:
        sql, ids = queries("dags"), dataset_ids(self.dag, self.org)
        read = [inputs[element] for element in job.inputs]
        written = [ids[JobOutput(job.name, output.index)] for output in job.outputs]
        bundle = await self._bundle(job)
        own = job_id(self.version, job.name)
        await self.connection.execute(
            sql["insert_job"],
            own,
            self.org,
            job.name,
            self.dag.name,
            self.version,
            *_columns(self.dag, job, read, written, bundle),
        )
        wheres = [None if element.where is None else as_json(element.where) for element in job.inputs]
        names, triggers = [element.name for element in job.inputs], [element.trigger for element in job.inputs]
        await self.connection.execute(sql["insert_inputs"], self.org, own, read, wheres, names, triggers)
        await self._column_lineage(job, own, written, dict(zip(names, read, strict=True)))

    async def _column_lineage(self, job: Job, own: UUID, written: Sequence[UUID], read: Mapping[str, UUID]) -> None:
        operator = operators().get(job.operator)
        if operator is None or operator.column_lineage is None:
            return
        wired = Wired(tuple(element.name for element in job.inputs), tuple(element.name for element in job.outputs))
        found = operator.column_lineage(job.config, wired)
        await self.connection.execute(
            queries("dags")["insert_column_lineage"],
            self.org,
            own,
            written[0],
            [source.output for source in found],
            [read[source.input] for source in found],
            [source.input_column for source in found],
        )

    async def _bundle(self, job: Job) -> UUID | None:
        if job.udf is None:
            return None
        row = await self.connection.fetchrow(queries("dags")["bundle_by_hash"], self.org, job.udf.sha256)
        return usable_bundle(job.name, job.udf, row)


def _input_id(item: Input, job: Job, own: Mapping[Own, DatasetId], foreign: Mapping[str, UUID]) -> UUID:
    match item.upstream:
        case JobOutput() | DeclaredDataset():
            return own[item.upstream]
        case ForeignDataset(name) if name in foreign:
            return foreign[name]
        case ForeignDataset(name):
            raise Conflict(
                f"dataset {name!r} was taken away meanwhile",
                where=f"jobs.{job.name}.inputs",
                hint="activate the DAG that publishes it, and try again",
            )


def _columns(dag: Dag, job: Job, read: Sequence[UUID], written: Sequence[UUID], bundle: UUID | None) -> tuple[Any, ...]:
    """From `activation` on, in the order of the statement."""
    return (
        str(job.activation),
        job.runtime,
        job.operator,
        _source(job),
        None if job.bootstrap is None else {"reset_outputs": job.bootstrap.reset_outputs},
        None if job.execution_strategy is None else str(job.execution_strategy),
        _idle_timeout(job),
        job.config,
        config_hash(job, dag.tuning.get(job.operator, ())),
        read,
        written,
        str(job.update_strategy),
        list(job.unique_key) or None,
        bundle,
        list(job.secrets),
        str(job.priority),
        None if job.scaling.max_concurrency is None else {"max_concurrency": job.scaling.max_concurrency},
        job.max_queue_depth,
        None if job.max_queue_age_seconds is None else timedelta(seconds=job.max_queue_age_seconds),
        job.timeout_seconds,
        job.heartbeat_interval_seconds,
        job.heartbeat_timeout_seconds,
        job.max_attempts,
        job.retry.backoff_seconds,
        job.retry.max_backoff_seconds,
        None if job.udf is None else job.udf.handler,
        job.max_platform_failures,
        _makes_whole(job),
    )


def _makes_whole(job: Job) -> bool:
    operator = operators().get(job.operator)
    return operator is not None and operator.makes_whole is not None and operator.makes_whole(job.config)


def _source(job: Job) -> dict[str, Any] | None:
    if job.source is None:
        return None
    told = {
        "kind": str(job.source.kind),
        "schedule": job.source.schedule,
        "secret": job.source.secret,
        "replay_window_seconds": job.source.replay_window_seconds,
    }
    return {name: value for name, value in told.items() if value is not None}


def _idle_timeout(job: Job) -> str | None:
    if job.source is not None:
        return None
    return "never" if job.idle_timeout_seconds is None else f"{job.idle_timeout_seconds}s"
