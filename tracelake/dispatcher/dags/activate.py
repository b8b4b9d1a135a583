"""Activates a version of a DAG: pointer, names, edges, tasks and sources change in one transaction.

The version's text is parsed again with the datasets that are published now: it may have been deployed long ago.
Activations of an organisation are serialized, so that two of them cannot take the same name or close a cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.catalog import catalog
from tracelake.dispatcher.dags.declare_tables import declare_tables
from tracelake.dispatcher.dags.deploy import Runtimes, input_ids, storage_kinds
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.domain.dag.catalog import PublishedDataset
from tracelake.domain.dag.hashes import dataset_ids, declared_ids
from tracelake.domain.dag.model import BufferedDataset, Dag, JobOutput, Publication
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import DagVersionId, DatasetId, OrgId, job_id
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict, InvalidDag, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Connection, Row, fetch_row, fetch_rows, find_row, queries

TRIES = 5
"""How often published datasets may change while the version is parsed, before the activation is refused."""


@dataclass(frozen=True)
class Activated:
    dag_version_id: UUID
    former: UUID | None
    """The version that was active before; the same one if nothing changed."""
    canceled_tasks: int = 0
    made_again: int = 0
    """How many of them were created again for unchanged jobs of the new version."""

    @property
    def changed(self) -> bool:
        return self.former != self.dag_version_id


class DagVersion(Row, frozen=True):
    yaml: str
    active: UUID | None


class RetiredTasks(Row, frozen=True):
    canceled: int
    made_again: int


class NameInUse(Row, frozen=True):
    name: str
    readers: list[str]


@dataclass(frozen=True)
class _Parsed:
    """A version's DAG, and the datasets that were published when it was parsed."""

    dag: Dag
    published: Mapping[str, PublishedDataset]


async def activate_dag(
    pool: asyncpg.Pool, after: AfterCommit, org_id: UUID, dag_name: str, version_id: UUID, *, runtimes: Runtimes
) -> Activated:
    for _ in range(TRIES):
        parsed = await _parse(pool, runtimes, org_id, dag_name, version_id)
        try:
            activated = await _switch(pool, OrgId(org_id), parsed, DagVersionId(version_id))
        except asyncpg.DeadlockDetectedError:  # with claims of the tasks that are canceled here
            continue
        if activated is not None:
            crash_point("activate_dag.after_commit")
            for signal in (after.outbox, after.leases, after.sources, after.stops):
                signal.notify()
            after.metrics.moved("any", TaskState.CANCELED, activated.canceled_tasks)
            return activated
    raise Conflict("other DAGs are being activated", where=dag_name, hint="try again")


async def _switch(pool: asyncpg.Pool, org: OrgId, parsed: _Parsed, version: DagVersionId) -> Activated | None:
    """None: the published datasets have changed since the version was parsed."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], org)
        if (await catalog(connection, org, {})).published != parsed.published:
            return None
        return await _Switch(connection, org, parsed.dag, version).run()


async def _parse(pool: asyncpg.Pool, runtimes: Runtimes, org_id: UUID, dag_name: str, version_id: UUID) -> _Parsed:
    version = await find_row(pool, queries("dags")["find_version"], DagVersion, org_id, dag_name, version_id)
    if version is None:
        raise NotFound(f"DAG {dag_name!r} has no such version", where=str(version_id))
    # Without the current declarations: an older version may lack columns that were added since; `declare_tables`
    # refuses real contradictions.
    current = await catalog(pool, org_id, runtimes)
    known = replace(current, declared={}, deployed=True)
    try:
        dag = await asyncio.to_thread(parse_dag, version.yaml, known)
    except InvalidDag as wrong:
        raise Conflict(
            f"this version does not fit the current state: {wrong.message}",
            where=wrong.where,
            hint=wrong.hint or "change it and deploy it again",
        ) from wrong
    return _Parsed(dag, known.published)


@dataclass(frozen=True)
class _Switch:
    """An activation inside its transaction."""

    connection: Connection
    org: OrgId
    dag: Dag
    version: DagVersionId

    async def run(self) -> Activated:
        sql = queries("dags")["find_version"]
        former = (await fetch_row(self.connection, sql, DagVersion, self.org, self.dag.name, self.version)).active
        if former == self.version:
            return Activated(self.version, former)
        await self._point()
        activated = await self._replace(former)
        # Names last: a completion locks its task before its dataset, and the other order would deadlock with it.
        await self._publish()
        await declare_tables(self.connection, self.org, self.dag)
        crash_point("activate_dag.before_commit")
        return activated

    async def _point(self) -> None:
        inputs = await input_ids(self.connection, self.org, self.dag)
        edges = [
            (job_id(self.version, job.name), position, inputs[job_input])
            for job in self.dag.jobs
            for position, job_input in enumerate(job.inputs)
        ]
        columns = [list(column) for column in zip(*edges, strict=True)] if edges else [[], [], []]
        await self.connection.execute(queries("dags")["point_inputs"], *columns)
        await self.connection.execute(queries("dags")["set_current_version"], self.org, self.dag.name, self.version)

    async def _replace(self, former: UUID | None) -> Activated:
        """Tasks, state and sources move from the former version to this one."""
        sql, sources = queries("dags"), queries("sources")
        tasks = await fetch_row(self.connection, sql["cancel_retired_tasks"], RetiredTasks, self.org, self.dag.name)
        if former is not None:
            await self.connection.execute(sql["copy_state"], self.org, former, self.version)
        await retire_sources(self.connection, self.org, self.dag.name)
        await self.connection.execute(sources["copy_pauses"], self.org, self.version)
        await self.connection.execute(sources["insert_sources"], self.org, self.version)
        return Activated(self.version, former, tasks.canceled, tasks.made_again)

    async def _publish(self) -> None:
        sql, ids, declared = queries("dags"), dataset_ids(self.dag, self.org), declared_ids(self.dag, self.org)
        named: dict[DatasetId, Publication | BufferedDataset] = {
            **{ids[JobOutput(published.job, published.output)]: published for published in self.dag.publish},
            **{declared[buffered.name]: buffered for buffered in self.dag.buffered},
        }
        names = [publication.name for publication in named.values()]
        await self._refuse_lost_names(list(named), names)
        await self.connection.execute(sql["clear_names"], self.org, self.dag.name, list(named), names)
        for dataset, publication in named.items():
            roles = [f"role:{role}" for role in publication.read_roles]
            await self.connection.execute(sql["set_name"], self.org, dataset, publication.name, roles)
        kinds = storage_kinds(self.dag)
        await self.connection.execute(
            sql["set_storage"], self.org, [ids[output] for output in kinds], [str(kind) for kind in kinds.values()]
        )

    async def _refuse_lost_names(self, datasets: Sequence[UUID], names: Sequence[str]) -> None:
        """A name that other DAGs read stays published, for the same dataset: their edges lead there."""
        kept = (self.org, self.dag.name, datasets, names)
        lost = await fetch_rows(self.connection, queries("dags")["list_names_in_use"], NameInUse, *kept)
        if lost:
            read = "; ".join(f"{name.name!r} is read by {', '.join(name.readers)}" for name in lost)
            raise Conflict(
                f"this version no longer publishes what other DAGs read: {read}",
                where="publish",
                hint="keep publishing it, or activate versions of those DAGs that do not read it",
            )
