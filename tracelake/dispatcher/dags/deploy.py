"""Deploys a DAG: inserts a version with its jobs, datasets, generations and edges. Next: `dags/activate.py`.

Every id is derived from its meaning, so the same text again, or concurrently, writes the same rows. Nothing that is
active changes: names and live edges belong to activation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.bundles.find_usable import find_usable
from tracelake.dispatcher.dags.basis import Generations, find_basis
from tracelake.dispatcher.dags.catalog import catalog, operators
from tracelake.dispatcher.dags.columns_read import columns_read
from tracelake.dispatcher.dags.proposals import proposal_warnings
from tracelake.dispatcher.dags.resolve_inputs import Own, input_ids, own_ids
from tracelake.dispatcher.sources.refuse_past_schedules import refuse_past_schedules
from tracelake.domain.access.storage_locations import buffered_table, generation_folder
from tracelake.domain.dag.catalog import Catalog, RuntimeSpec, Wired
from tracelake.domain.dag.hashes import (
    BUFFERED,
    Basis,
    canonical_json,
    dataset_ids,
    declared_ids,
    generation_ids,
    job_hash,
    lineage_hashes,
    listed_addresses,
    memo_hash,
)
from tracelake.domain.dag.model import Dag, DagInput, Job, JobOutput, Storage
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.dag.yaml_nodes import name_in
from tracelake.domain.filter.tree import as_json
from tracelake.domain.ids import (
    ConfigHash,
    DagVersionId,
    DatasetId,
    DatasetVersion,
    LineageHash,
    OrgId,
    dag_version_id,
    job_id,
)
from tracelake.domain.sources.decide_slots import Overlap
from tracelake.errors import InvalidRequest, Problem
from tracelake.runtime.crash_points import crash_point
from tracelake.store.identity import User
from tracelake.store.queries import Connection, queries

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
    """Fields that have no effect, and access that is proposed where an other one is decided."""


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
    known = await catalog(pool, org_id, runtimes)
    dag, basis = await parse_new(pool, known, org_id, text)
    async with pool.acquire() as connection, connection.transaction():
        version, created = await insert_version(connection, OrgId(org_id), user_id, NewDag(dag, basis, text), bucket)
        crash_point("deploy_dag.before_commit")
    crash_point("deploy_dag.after_commit")
    return Deployed(
        version,
        dag.name,
        dag.yaml_hash,
        created,
        {job.name: job_id(version, job.name) for job in dag.jobs},
        dataset_ids(dag, OrgId(org_id)),
        (*dag.warnings, *await proposal_warnings(pool, OrgId(org_id), dag, text)),
    )


@dataclass(frozen=True)
class NewDag:
    """A DAG that is deployed: parsed, and as it was written."""

    dag: Dag
    basis: Basis
    text: str
    renamed: Mapping[str, UUID] = field(default_factory=dict)
    """Datasets that other DAGs publish when this one becomes active, by name."""

    def version(self, org: OrgId) -> DagVersionId:
        return dag_version_id(org, self.dag.name, self.dag.yaml_hash, self.basis.foreign)


async def insert_version(
    connection: Connection, org: OrgId, user_id: UUID | None, new: NewDag, bucket: str
) -> tuple[DagVersionId, bool]:
    """The version's id, and whether it was created: one with the same content may exist."""
    version, dag = new.version(org), new.dag
    foreign = {name: str(generation) for name, generation in new.basis.foreign.items()}
    sql = queries("dags")["insert_version"]
    created = await connection.fetchval(sql, version, org, dag.name, dag.yaml_hash, new.text, user_id, foreign)
    if created is not None:
        await refuse_past_schedules(connection, org, dag, new.text)
        await connection.execute(queries("org_limits")["lock_org"], org)
        await _NewVersion(connection, org, version, new, bucket).insert()
    else:
        await connection.execute(queries("delete_dag")["restore_version"], version)
    return version, created is not None


async def parse_new(
    pool: asyncpg.Pool, known: Catalog, org_id: UUID, text: str, foreign: Generations | None = None
) -> tuple[Dag, Basis]:
    """The DAG, if it can be deployed: a new version must agree with the current declarations, an old one need not."""
    dag = await asyncio.to_thread(parse_dag, text, replace(known, declared={}))
    basis = await find_basis(pool, org_id, dag, known, foreign)
    if any((dag.name, dataset.name) in known.declared for dataset in dag.buffered):
        version = NewDag(dag, basis, text).version(OrgId(org_id))
        if not await pool.fetchrow(queries("dags")["find_version"], org_id, dag.name, version):
            await asyncio.to_thread(parse_dag, text, known)
    return dag, basis


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
    new: NewDag
    bucket: str

    @property
    def dag(self) -> Dag:
        return self.new.dag

    @property
    def basis(self) -> Basis:
        return self.new.basis

    @cached_property
    def own(self) -> Mapping[Own, DatasetId]:
        return own_ids(self.dag, self.org)

    @cached_property
    def generations(self) -> Mapping[DatasetId, DatasetVersion]:
        return generation_ids(self.dag, self.org, self.basis)

    async def insert(self) -> None:
        await self._insert_datasets()
        inputs = await input_ids(self.connection, self.org, self.dag, self.own, self.new.renamed)
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
        pointers = list(self.generations), list(self.generations.values())
        await self.connection.execute(sql["insert_pointers"], self.org, self.version, *pointers)

    def _datasets(self) -> list[_Dataset]:
        """Outputs that are datasets of their own, and the datasets that the DAG declares."""
        lineages = lineage_hashes(self.dag, self.basis)
        own = [
            _Dataset(self.own[output], self.generations[self.own[output]], kind, lineages[output.job], output)
            for output, kind in storage_kinds(self.dag).items()
        ]
        declared = [
            _Dataset(dataset, self.generations[dataset], Storage.BUFFERED, BUFFERED)
            for dataset in declared_ids(self.dag, self.org).values()
        ]
        return [*own, *declared]

    def _place(self, dataset: _Dataset) -> tuple[str, str | None]:
        """The location of a generation, and the pattern of its objects there."""
        if dataset.kind is Storage.PARQUET:
            return str(generation_folder(self.bucket, self.org, dataset.id, dataset.generation)), "*.parquet"
        if dataset.output is None:
            return f"postgres_table:{buffered_table(dataset.generation)}", None
        return f"postgres_table:dataset_{str(dataset.id).replace('-', '_')}", None

    async def _insert_job(self, job: Job, inputs: Mapping[DagInput, UUID]) -> None:
        sql = queries("dags")
        read = [inputs[job_input] for job_input in job.inputs]
        written = [self.own[JobOutput(job.name, output.index)] for output in job.outputs]
        bundle = await find_usable(self.connection, self.org, job)
        own = job_id(self.version, job.name)
        await self.connection.execute(
            sql["insert_job"],
            own,
            self.org,
            job.name,
            self.dag.name,
            self.version,
            *_columns(job_hash(self.dag, job, self.basis), job, read, written, bundle),
        )
        wheres = [None if job_input.where is None else as_json(job_input.where) for job_input in job.inputs]
        names, triggers = [job_input.name for job_input in job.inputs], [job_input.trigger for job_input in job.inputs]
        columns = [_as_json(columns_read(job, job_input)) for job_input in job.inputs]
        await self.connection.execute(sql["insert_inputs"], self.org, own, read, wheres, names, triggers, columns)
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
            [written[source.index] for source in sources],
            [source.output for source in sources],
            [read[source.input] for source in sources],
            [source.input_column for source in sources],
        )


def _columns(
    config_hash: ConfigHash, job: Job, read: Sequence[UUID], written: Sequence[UUID], bundle: UUID | None
) -> tuple[Any, ...]:
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
        config_hash,
        read,
        written,
        str(job.update_strategy),
        list(job.unique_key) or None,
        bundle,
        list(job.secrets),
        str(job.priority),
        _scaling(job),
        job.max_queue_depth,
        _interval(job.max_queue_age_seconds),
        job.resume_queue_depth,
        _interval(job.resume_queue_age_seconds),
        job.timeout_seconds,
        job.heartbeat_interval_seconds,
        job.heartbeat_timeout_seconds,
        job.max_attempts,
        job.retry.backoff_seconds,
        job.retry.max_backoff_seconds,
        None if job.udf is None else job.udf.handler,
        job.max_platform_failures,
        _makes_whole(job),
        job.replay,
        memo_hash(job, operators().get(job.operator)),
        _addresses(job),
    )


def _addresses(job: Job) -> list[bytes] | None:
    listed = listed_addresses(job, operators().get(job.operator))
    return None if listed is None else sorted(listed.addresses)


def _as_json(names: Sequence[str] | None) -> str | None:
    return None if names is None else canonical_json(names)


def _interval(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _makes_whole(job: Job) -> bool:
    """A source's tasks differ in what fired them: none does the work of another."""
    operator = operators().get(job.operator)
    if job.source is not None or operator is None or operator.makes_whole is None:
        return False
    return operator.makes_whole(job.config)


def _scaling(job: Job) -> dict[str, int] | None:
    """Fires of a schedule wait for each other unless they may overlap, as tasks wait for a slot of their job."""
    if job.source is not None and job.source.overlap not in {None, Overlap.ALLOW}:
        return {"max_concurrency": 1}
    most = job.scaling.max_concurrency
    return None if most is None else {"max_concurrency": most}


def _source(job: Job) -> dict[str, Any] | None:
    if job.source is None:
        return None
    return {name: value for name, value in asdict(job.source).items() if value is not None}


def _idle_timeout(job: Job) -> str | None:
    if job.source is not None:
        return None
    return "never" if job.idle_timeout_seconds is None else f"{job.idle_timeout_seconds}s"
