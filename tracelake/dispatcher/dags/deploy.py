"""Deploys a DAG: inserts a version with its jobs, datasets, generations and edges. Next: `dags/activate.py`.

Every id is derived from its meaning, so the same text again, or concurrently, writes the same rows. Nothing that is
active changes: names and live edges belong to activation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.catalog import Published, catalog, operators
from tracelake.domain.bundle.rules import Kind, check_handler
from tracelake.domain.dag.catalog import RuntimeSpec, Wired
from tracelake.domain.dag.hashes import BUFFERED, config_hash, dataset_ids, declared_ids, generation_ids, lineage_hashes
from tracelake.domain.dag.model import Dag, DeclaredDataset, ForeignDataset, Input, Job, JobOutput, Storage, Udf
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.dag.yaml_nodes import name_in
from tracelake.domain.filter.tree import as_json
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
from tracelake.errors import Conflict, InvalidBundle, InvalidRequest, Problem
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, Row, fetch_rows, find_row, queries

Own = JobOutput | DeclaredDataset
Runtimes = Mapping[str, RuntimeSpec]


@dataclass(frozen=True)
class Deployed:
    dag_version_id: UUID
    dag_name: str
    yaml_hash: str
    created: bool
    """False: a version with this content existed, and nothing was written."""
    jobs: Mapping[str, UUID]
    datasets: Mapping[JobOutput, UUID]
    warnings: tuple[Problem, ...] = ()
    """Fields that have no effect."""


class UdfBundle(Row, frozen=True):
    id: UUID
    name: str
    kind: Kind
    status: str
    reason: str | None
    entry_points: list[str]


async def deploy_named(
    pool: asyncpg.Pool, user: User, dag_name: str, text: str, *, runtimes: Runtimes, bucket: str
) -> Deployed:
    """Deploys a DAG under the name in the path, which must be the name in the YAML."""
    name = await asyncio.to_thread(name_in, text)
    if name is not None and name != dag_name:
        raise InvalidRequest(
            f"the YAML is of DAG {name[:128]!r}, the path of {dag_name!r}",
            where="/yaml",
            hint=f"POST it to /v1/dags/{name[:128]}/versions, or change `name`",
        )
    return await deploy_dag(pool, user.org_id, user.id, text, runtimes=runtimes, bucket=bucket)


async def deploy_dag(
    pool: asyncpg.Pool, org_id: UUID, user_id: UUID | None, text: str, *, runtimes: Runtimes, bucket: str
) -> Deployed:
    """`bucket`: where the generations of its datasets lie."""
    dag = await _parse(pool, runtimes, org_id, text)
    version = dag_version_id(OrgId(org_id), dag.name, dag.yaml_hash)
    async with pool.acquire() as connection, connection.transaction():
        sql = queries("dags")["insert_version"]
        new = await connection.fetchval(sql, version, org_id, dag.name, dag.yaml_hash, text, user_id)
        if new is not None:
            await _NewVersion(connection, OrgId(org_id), version, dag, bucket).insert()
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


async def _parse(pool: asyncpg.Pool, runtimes: Runtimes, org_id: UUID, text: str) -> Dag:
    """The DAG, if it can be deployed: a new version must agree with the current declarations, an old one need not."""
    known = await catalog(pool, org_id, runtimes)
    dag = await asyncio.to_thread(parse_dag, text, replace(known, declared={}))
    if any((dag.name, dataset.name) in known.declared for dataset in dag.buffered):
        version = dag_version_id(OrgId(org_id), dag.name, dag.yaml_hash)
        if not await pool.fetchrow(queries("dags")["find_version"], org_id, dag.name, version):
            await asyncio.to_thread(parse_dag, text, known)
    return dag


async def input_ids(connection: Connection, org: OrgId, dag: Dag) -> Mapping[Input, UUID]:
    """The dataset of each input; a name of another DAG means the dataset that has it now."""
    own: dict[Own, DatasetId] = {DeclaredDataset(name): dataset for name, dataset in declared_ids(dag, org).items()}
    own |= dict[Own, DatasetId](dataset_ids(dag, org).items())
    published = await fetch_rows(connection, queries("dags")["list_published_datasets"], Published, org)
    foreign = {dataset.name: dataset.id for dataset in published}
    return {job_input: _input_id(job_input, job, own, foreign) for job in dag.jobs for job_input in job.inputs}


def storage_kinds(dag: Dag) -> Mapping[JobOutput, Storage]:
    """Of the outputs that are datasets of their own."""
    return {
        JobOutput(job.name, output.index): output.storage
        for job in dag.jobs
        for output in job.outputs
        if output.dataset is None
    }


@dataclass(frozen=True)
class _Dataset:
    """A dataset of the new version."""

    id: DatasetId
    generation: DatasetVersion
    kind: Storage
    lineage: LineageHash
    output: JobOutput | None = None
    """None: declared by the DAG, for any of its jobs."""


@dataclass(frozen=True)
class _NewVersion:
    """Inserts the rows of a new version, inside its transaction."""

    connection: Connection
    org: OrgId
    version: DagVersionId
    dag: Dag
    bucket: str

    async def insert(self) -> None:
        await self._insert_datasets()
        inputs = await input_ids(self.connection, self.org, self.dag)
        for job in self.dag.jobs:
            await self._insert_job(job, inputs)

    async def _insert_datasets(self) -> None:
        datasets, sql = self._datasets(), queries("dags")
        await self.connection.execute(
            sql["insert_datasets"],
            self.org,
            self.dag.name,
            [dataset.id for dataset in datasets],
            [dataset.output.job if dataset.output else None for dataset in datasets],
            [dataset.output.output if dataset.output else None for dataset in datasets],
            [str(dataset.kind) for dataset in datasets],
        )
        places = [self._place(dataset) for dataset in datasets]
        await self.connection.execute(
            sql["insert_generations"],
            self.org,
            [dataset.generation for dataset in datasets],
            [dataset.id for dataset in datasets],
            [location for location, _ in places],
            [glob for _, glob in places],
            [dataset.lineage for dataset in datasets],
        )
        generations = generation_ids(self.dag, self.org)
        await self.connection.execute(
            sql["insert_pointers"], self.org, self.version, list(generations), list(generations.values())
        )

    def _datasets(self) -> list[_Dataset]:
        """Outputs that are datasets of their own, and the datasets that the DAG declares."""
        ids, lineages = dataset_ids(self.dag, self.org), lineage_hashes(self.dag)
        generations = generation_ids(self.dag, self.org)
        own = [
            _Dataset(ids[output], generations[ids[output]], kind, lineages[output.job], output)
            for output, kind in storage_kinds(self.dag).items()
        ]
        declared = [
            _Dataset(dataset, generations[dataset], Storage.BUFFERED, BUFFERED)
            for dataset in declared_ids(self.dag, self.org).values()
        ]
        return [*own, *declared]

    def _place(self, dataset: _Dataset) -> tuple[str, str | None]:
        """The location of a generation, and the pattern of its objects there."""
        if dataset.kind is Storage.PARQUET:
            return str(generation_folder(self.bucket, dataset.id, dataset.generation)), "*.parquet"
        if dataset.output is None:
            return f"postgres_table:{buffered_table(dataset.generation)}", None
        return f"postgres_table:dataset_{str(dataset.id).replace('-', '_')}", None

    async def _insert_job(self, job: Job, inputs: Mapping[Input, UUID]) -> None:
        sql, ids = queries("dags"), dataset_ids(self.dag, self.org)
        read = [inputs[job_input] for job_input in job.inputs]
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
        wheres = [None if job_input.where is None else as_json(job_input.where) for job_input in job.inputs]
        names, triggers = [job_input.name for job_input in job.inputs], [job_input.trigger for job_input in job.inputs]
        await self.connection.execute(sql["insert_inputs"], self.org, own, read, wheres, names, triggers)
        await self._insert_column_lineage(job, own, written, dict(zip(names, read, strict=True)))

    async def _insert_column_lineage(
        self, job: Job, own: UUID, written: Sequence[UUID], read: Mapping[str, UUID]
    ) -> None:
        operator = operators().get(job.operator)
        if operator is None or operator.column_lineage is None:
            return
        wired = Wired(tuple(job_input.name for job_input in job.inputs), tuple(output.name for output in job.outputs))
        sources = operator.column_lineage(job.config, wired)
        await self.connection.execute(
            queries("dags")["insert_column_lineage"],
            self.org,
            own,
            written[0],
            [source.output for source in sources],
            [read[source.input] for source in sources],
            [source.input_column for source in sources],
        )

    async def _bundle(self, job: Job) -> UUID | None:
        if job.udf is None:
            return None
        sql = queries("dags")["lock_bundle"]
        bundle = await find_row(self.connection, sql, UdfBundle, self.org, job.udf.sha256)
        return _usable_bundle(f"jobs.{job.name}.udf", job.udf, bundle)


def _usable_bundle(where: str, udf: Udf, bundle: UdfBundle | None) -> UUID:
    """The id of the bundle if a job may run it: ready, with the name and the handler that the job refers to."""
    content = f"the bundle with the content {udf.sha256[:12]}..."
    if bundle is None or bundle.status == "Pending":
        message = f"no bundle with the content {udf.sha256[:12]}... is ready"
        raise Conflict(message, where=f"{where}.sha256", hint=f"`trace udf push` {udf.bundle} first")
    if bundle.status == "Refused":
        hint = "fix it, push it again, and use the new hash"
        raise Conflict(f"{content} was refused: {bundle.reason}", where=f"{where}.sha256", hint=hint)
    if bundle.name != udf.bundle:
        hint = f"`bundle: {bundle.name}`, or the hash of the right bundle"
        raise Conflict(f"{content} is called {bundle.name!r}, not {udf.bundle!r}", where=f"{where}.bundle", hint=hint)
    try:
        check_handler(bundle.entry_points, bundle.kind, udf.handler)
    except InvalidBundle as wrong:
        raise Conflict(wrong.message, where=f"{where}.handler", hint=wrong.hint) from None
    return bundle.id


def _input_id(job_input: Input, job: Job, own: Mapping[Own, DatasetId], foreign: Mapping[str, UUID]) -> UUID:
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


def _columns(dag: Dag, job: Job, read: Sequence[UUID], written: Sequence[UUID], bundle: UUID | None) -> tuple[Any, ...]:
    """The values of `insert_job` from `activation` on."""
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
    source = {
        "kind": str(job.source.kind),
        "schedule": job.source.schedule,
        "secret": job.source.secret,
        "replay_window_seconds": job.source.replay_window_seconds,
    }
    return {name: value for name, value in source.items() if value is not None}


def _idle_timeout(job: Job) -> str | None:
    if job.source is not None:
        return None
    return "never" if job.idle_timeout_seconds is None else f"{job.idle_timeout_seconds}s"
