"""Makes versions of DAGs the active ones: pointers, names, edges, tasks and sources change in one transaction.

A version's text is parsed again with the datasets that are published now: it may have been deployed long ago.
Switches of an organisation are serialized, so that two of them cannot take the same name or close a cycle.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tracelake.dispatcher.dags.catalog import PublishedNow, catalog, published_now
from tracelake.dispatcher.dags.declare_tables import declare_tables
from tracelake.dispatcher.dags.deploy import Runtimes, storage_kinds
from tracelake.dispatcher.dags.proposals import proposed_roles, publications
from tracelake.dispatcher.dags.resolve_inputs import Own, input_ids, own_ids
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.sources.retire import retire_sources
from tracelake.dispatcher.versions.catch_up import request_catch_up
from tracelake.domain.dag.catalog import Catalog, PublishedDataset
from tracelake.domain.dag.hashes import foreign_names
from tracelake.domain.dag.model import BufferedDataset, Dag, JobOutput, Publication, Storage
from tracelake.domain.dag.parse import parse_dag
from tracelake.domain.ids import DagVersionId, DatasetId, JobId, JobName, OrgId, job_id
from tracelake.domain.task import TaskState
from tracelake.errors import Conflict, InvalidDag, NotFound
from tracelake.store.queries import Connection, Queryable, Row, fetch_row, fetch_rows, find_row, queries


@dataclass(frozen=True)
class Activated:
    dag_name: str
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
class ParsedVersion:
    """A version with the ids that its switch names: hundreds of hashes, which are not computed in its transaction."""

    id: DagVersionId
    dag: Dag
    own: Mapping[Own, DatasetId]
    named: Mapping[DatasetId, Publication | BufferedDataset]
    jobs: Mapping[JobName, JobId]


@dataclass(frozen=True)
class ParsedVersions:
    """Versions that become active together, and the datasets that were published when they were parsed."""

    versions: Sequence[ParsedVersion]
    published: PublishedNow


async def parse_versions(
    database: Queryable, runtimes: Runtimes, org_id: UUID, versions: Mapping[str, UUID]
) -> ParsedVersions:
    """`versions`: by DAG."""
    texts = {}
    for dag_name, version_id in versions.items():
        version = await find_row(database, queries("dags")["find_version"], DagVersion, org_id, dag_name, version_id)
        if version is None:
            raise NotFound(f"DAG {dag_name!r} has no such version", where=str(version_id))
        texts[dag_name] = version.yaml
    # Without the current declarations: an older version may lack columns that were added since; `declare_tables`
    # refuses real contradictions.
    published = await published_now(database, org_id)
    known = replace(await catalog(database, org_id, runtimes, published), declared={}, deployed=True)
    try:
        parsed = await asyncio.to_thread(_parse_all, OrgId(org_id), texts, versions, known)
    except InvalidDag as wrong:
        raise Conflict(
            f"this version does not fit the current state: {wrong.message}",
            where=wrong.where,
            hint=wrong.hint or "change it and deploy it again",
        ) from wrong
    return ParsedVersions(parsed, published)


def _parse_all(
    org: OrgId, texts: Mapping[str, str], versions: Mapping[str, UUID], known: Catalog
) -> list[ParsedVersion]:
    return [_parsed(org, DagVersionId(versions[name]), dag) for name, dag in parse_together(texts, known).items()]


def _parsed(org: OrgId, version: DagVersionId, dag: Dag) -> ParsedVersion:
    jobs = {job.name: job_id(version, job.name) for job in dag.jobs}
    return ParsedVersion(version, dag, own_ids(dag, org), publications(dag, org), jobs)


def parse_together(texts: Mapping[str, str], known: Catalog) -> dict[str, Dag]:
    """Each may read what another publishes for the first time: one that is refused is tried again after the others."""
    dags: dict[str, Dag] = {}
    while len(dags) < len(texts):
        before, refusal = len(dags), None
        for key in [key for key in texts if key not in dags]:
            try:
                dags[key] = parse_dag(texts[key], known)
            except InvalidDag as wrong:
                refusal = refusal or wrong
            else:
                known = replace(known, published={**_published_by(dags[key]), **known.published})
        if refusal is not None and len(dags) == before:
            raise refusal
    return dags


def _published_by(dag: Dag) -> dict[str, PublishedDataset]:
    kinds = storage_kinds(dag)
    read = frozenset(str(name) for job in dag.jobs for name in foreign_names(job))
    outputs = {
        str(item.name): PublishedDataset(dag.name, read, kinds.get(JobOutput(item.job, item.output)))
        for item in dag.publish
    }
    return outputs | {str(item.name): PublishedDataset(dag.name, read, Storage.BUFFERED) for item in dag.buffered}


async def switch(
    connection: Connection, org: OrgId, parsed: ParsedVersions, *, release: UUID | None = None
) -> list[Activated] | None:
    """None: the published datasets have changed since the versions were parsed. In the caller's transaction.

    `release`: the one whose versions these are; any other that builds one of these DAGs is abandoned.
    """
    await connection.execute(queries("dags")["lock_activation"], org)
    if await published_now(connection, org) != parsed.published:
        return None
    done, switches = [], []
    for version in parsed.versions:
        name = version.dag.name
        found = await fetch_row(connection, queries("dags")["find_version"], DagVersion, org, name, version.id)
        if found.active == version.id:
            done.append(Activated(name, version.id, version.id))
        else:
            switches.append(_Switch(connection, org, version, found.active))
    names = [switch.dag.name for switch in switches]
    await connection.execute(queries("releases")["overtake"], org, names, release)
    if release is not None:
        await connection.execute(queries("releases")["end_building"], release)
    for step in switches:
        await connection.execute(queries("dags")["set_current_version"], org, step.dag.name, step.version.id)
    done += [await step.replace_former() for step in switches]
    # Names last: a completion locks its task before its dataset, and the other order would deadlock with it.
    for step in switches:
        await step.publish()
    for step in switches:
        await step.point_inputs()
        await declare_tables(connection, org, step.dag)
    for step in switches:
        await request_catch_up(connection, org, step.former, step.version.id)
    return done


def after_switch(after: AfterCommit, done: Sequence[Activated]) -> None:
    """Notifies the loops that have work now."""
    for signal in (after.outbox, after.leases, after.sources, after.catch_up, after.stops, after.schedules):
        signal.notify()
    after.metrics.moved("any", TaskState.CANCELED, sum(activated.canceled_tasks for activated in done))


@dataclass(frozen=True)
class _Switch:
    """One DAG of a switch, inside its transaction."""

    connection: Connection
    org: OrgId
    version: ParsedVersion
    former: UUID | None

    @property
    def dag(self) -> Dag:
        return self.version.dag

    async def replace_former(self) -> Activated:
        """Tasks, state and sources move from the former version to this one."""
        sql, sources, schedules = queries("dags"), queries("sources"), queries("schedules")
        version = self.version.id
        tasks = await fetch_row(self.connection, sql["cancel_retired_tasks"], RetiredTasks, self.org, self.dag.name)
        await self.connection.execute(sql["copy_state"], self.org, version)
        await retire_sources(self.connection, self.org, self.dag.name)
        await self.connection.fetchval(queries("flow")["move_held"], self.org, self.dag.name)
        await self.connection.execute(sources["copy_pauses"], self.org, version)
        await self.connection.execute(sources["insert_sources"], self.org, version)
        await self.connection.execute(schedules["insert_schedules"], self.org, version, self.former)
        await self.connection.execute(schedules["delete_schedules"], self.org, self.dag.name, version)
        return Activated(self.dag.name, version, self.former, tasks.canceled, tasks.made_again)

    async def publish(self) -> None:
        sql, named, own = queries("dags"), self.version.named, self.version.own
        names = [publication.name for publication in named.values()]
        await self._refuse_lost_names(list(named), names)
        await self.connection.execute(sql["clear_names"], self.org, self.dag.name, list(named), names)
        roles = [json.dumps(proposed_roles(publication)) for publication in named.values()]
        await self.connection.execute(sql["set_names"], self.org, list(named), names, roles)
        kinds = storage_kinds(self.dag)
        await self.connection.execute(
            sql["set_storage"], self.org, [own[output] for output in kinds], [str(kind) for kind in kinds.values()]
        )

    async def point_inputs(self) -> None:
        inputs = await input_ids(self.connection, self.org, self.dag, self.version.own)
        edges = [
            (self.version.jobs[job.name], position, inputs[job_input])
            for job in self.dag.jobs
            for position, job_input in enumerate(job.inputs)
        ]
        columns = [list(column) for column in zip(*edges, strict=True)] if edges else [[], [], []]
        await self.connection.execute(queries("dags")["point_inputs"], *columns)

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
