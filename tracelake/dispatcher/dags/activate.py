"""A version of a DAG becomes the one that serves: pointer, names, edges, tasks and sources, in one transaction.

What the version says is read again from its text, against what is published now: it may have been deployed long ago.
Activations of one organisation happen one after the other, so two of them cannot take one name or close a ring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.catalog import catalog
from tracelake.dispatcher.dags.declare_tables import declare_tables
from tracelake.dispatcher.dags.deploy import input_ids, storage_kinds
from tracelake.dispatcher.sources.leave import leave_sources
from tracelake.domain.dag.catalog import PublishedDataset
from tracelake.domain.dag.parse import (
    BufferedDataset,
    Dag,
    JobOutput,
    Publication,
    dataset_ids,
    declared_ids,
    parse_dag,
)
from tracelake.domain.ids import DagVersionId, DatasetId, OrgId, job_id
from tracelake.errors import Conflict, InvalidDag, NotFound
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries

Connection = asyncpg.pool.PoolConnectionProxy
TRIES = 5
"""How often others may change what is published while we read, before we say so."""


@dataclass(frozen=True)
class Activated:
    dag_version_id: UUID
    former: UUID | None
    """The version that served until now; the same one if nothing changed."""
    canceled_tasks: int = 0
    made_again: int = 0
    """Tasks of those that live on, as tasks of unchanged jobs of the new version."""

    @property
    def changed(self) -> bool:
        return self.former != self.dag_version_id


@dataclass(frozen=True)
class _Read:
    """A version's text, read against what was published at that moment."""

    dag: Dag
    published: Mapping[str, PublishedDataset]


async def activate_dag(control: Control, org_id: UUID, dag_name: str, version_id: UUID) -> Activated:
    for _ in range(TRIES):
        read = await _read(control, org_id, dag_name, version_id)
        try:
            done = await _switch(control, OrgId(org_id), read, DagVersionId(version_id))
        except asyncpg.DeadlockDetectedError:  # with workers that claim what we cancel; we are the rarer one
            continue
        if done is not None:
            crash_point("activate_dag.after_commit")
            control.outbox_signal.notify()
            control.leases.notify()
            control.sources.notify()
            control.stops.notify()
            control.metrics.moved("any", "Canceled", done.canceled_tasks)
            return done
    raise Conflict("other DAGs are being activated", where=dag_name, hint="try again")


async def retire_tasks(control: Control) -> int:
    """What a router made for a version in the very moment it left; for the reconciler's slow beat."""
    row = await control.pool.fetchrow(queries("dags")["retire_tasks"], None, None)
    assert row is not None  # noqa: S101 - a SELECT of scalars always has its row
    if row["made_again"]:
        control.outbox_signal.notify()
    if row["canceled"]:
        control.stops.notify()
    return int(row["canceled"])


async def _switch(control: Control, org: OrgId, read: _Read, version: DagVersionId) -> Activated | None:
    """None: what is published has changed since we read."""
    async with control.pool.acquire() as connection, connection.transaction():
        await connection.execute(queries("dags")["lock_activation"], org)
        if (await catalog(connection, org)).published != read.published:
            return None
        return await _Switch(connection, org, read.dag, version).go()


async def _read(control: Control, org_id: UUID, dag_name: str, version_id: UUID) -> _Read:
    row = await control.pool.fetchrow(queries("dags")["find_version"], org_id, dag_name, version_id)
    if row is None:
        raise NotFound(f"DAG {dag_name!r} has no such version", where=str(version_id))
    # Without the declarations in force: an older version may lack columns that were added since, and go back to it one
    # can. What it really contradicts is found in the transaction.
    found = await catalog(control.pool, org_id, control.runtimes, control.invokers)
    known = replace(found, declared={}, deployed=True)
    try:
        dag = await asyncio.to_thread(parse_dag, row["yaml"], known)
    except InvalidDag as wrong:
        raise Conflict(
            f"this version does not fit what there is now: {wrong.message}",
            where=wrong.where,
            hint=wrong.hint or "change it and deploy it again",
        ) from wrong
    return _Read(dag, known.published)


@dataclass(frozen=True)
class _Switch:
    """One activation, inside its transaction, alone in its organisation."""

    connection: Connection
    org: OrgId
    dag: Dag
    version: DagVersionId

    async def go(self) -> Activated:
        row = await self.connection.fetchrow(queries("dags")["find_version"], self.org, self.dag.name, self.version)
        assert row is not None  # noqa: S101 - versions are never deleted
        former = row["active"]
        if former == self.version:
            return Activated(self.version, former)
        await self._point()
        done = await self._hand_over(former)
        # Names last: a completion takes its task before its dataset, and whoever took them in the other order would
        # wait for it in a ring.
        await self._name()
        await declare_tables(self.connection, self.org, self.dag)
        crash_point("activate_dag.before_commit")
        return done

    async def _point(self) -> None:
        inputs = await input_ids(self.connection, self.org, self.dag)
        edges = [
            (job_id(self.version, job.name), position, inputs[element])
            for job in self.dag.jobs
            for position, element in enumerate(job.inputs)
        ]
        columns = [list(column) for column in zip(*edges, strict=True)] if edges else [[], [], []]
        await self.connection.execute(queries("dags")["point_inputs"], *columns)
        await self.connection.execute(queries("dags")["swap_version"], self.org, self.dag.name, self.version)

    async def _hand_over(self, former: UUID | None) -> Activated:
        sql = queries("dags")
        row = await self.connection.fetchrow(sql["retire_tasks"], self.org, self.dag.name)
        assert row is not None  # noqa: S101 - a SELECT of scalars always has its row
        if former is not None:
            await self.connection.execute(sql["inherit_state"], self.org, former, self.version)
        await leave_sources(self.connection, self.org, self.dag.name)
        await self.connection.execute(queries("sources")["inherit_pauses"], self.org, self.version)
        await self.connection.execute(queries("sources")["enter"], self.org, self.version)
        return Activated(self.version, former, row["canceled"], row["made_again"])

    async def _name(self) -> None:
        sql, ids, declared = queries("dags"), dataset_ids(self.dag, self.org), declared_ids(self.dag, self.org)
        named: dict[DatasetId, Publication | BufferedDataset] = {
            **{ids[JobOutput(item.job, item.output)]: item for item in self.dag.publish},
            **{declared[item.name]: item for item in self.dag.buffered},
        }
        names = [item.name for item in named.values()]
        await self._refuse_taking_away(list(named), names)
        await self.connection.execute(sql["clear_names"], self.org, self.dag.name, list(named), names)
        for dataset, item in named.items():
            roles = [f"role:{role}" for role in item.read_roles]
            await self.connection.execute(sql["set_name"], self.org, dataset, item.name, roles)
        kinds = storage_kinds(self.dag)
        await self.connection.execute(
            sql["set_storage"], self.org, [ids[output] for output in kinds], [str(kind) for kind in kinds.values()]
        )

    async def _refuse_taking_away(self, kept: Sequence[UUID], names: Sequence[str]) -> None:
        """A name that others read stays, and stays with its dataset: their edges lead there."""
        rows = await self.connection.fetch(queries("dags")["names_in_use"], self.org, self.dag.name, kept, names)
        if rows:
            read = "; ".join(f"{row['name']!r} is read by {', '.join(row['readers'])}" for row in rows)
            raise Conflict(
                f"this version would take away what other DAGs read: {read}",
                where="publish",
                hint="go on publishing it, or activate versions of those DAGs that do not read it",
            )
