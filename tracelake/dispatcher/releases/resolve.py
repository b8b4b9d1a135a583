"""Finds which DAGs a change concerns: those that were edited, and all that read a dataset with a new generation.

A DAG downstream of one that was edited keeps its YAML. Its generations are derived from those of the datasets that it
reads, so it becomes a new version, which is built and promoted with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import asyncpg

from tracelake.dispatcher.dags.basis import find_basis
from tracelake.dispatcher.dags.catalog import catalog
from tracelake.dispatcher.dags.deploy import NewDag, Runtimes
from tracelake.dispatcher.dags.switch import parse_together
from tracelake.domain.dag.catalog import Catalog
from tracelake.domain.dag.hashes import dataset_ids, declared_ids, generation_ids
from tracelake.domain.dag.model import Dag, JobOutput
from tracelake.domain.dag.yaml_nodes import read_name
from tracelake.domain.ids import DagVersionId, DatasetId, DatasetName, DatasetVersion, OrgId
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.queries import Queryable, Row, fetch_rows, queries


class ActiveDag(Row, frozen=True):
    dag_name: str
    id: UUID
    yaml: str
    yaml_hash: str


class ReleaseReader(Row, frozen=True):
    dataset_uuid: UUID
    dag_name: str
    job_name: str


class Pointer(Row, frozen=True):
    dag_name: str
    dataset_uuid: UUID
    dataset_version: UUID
    name: str | None
    job_name: str | None
    output_index: int | None

    @property
    def label(self) -> str:
        return self.name or f"{self.job_name}[{self.output_index}]"


@dataclass(frozen=True)
class Member:
    """A DAG of a change: its new version, and the active one."""

    new: NewDag
    former: ActiveDag | None
    edited: bool
    """Its file was given, and differs from that of the active version."""
    version: DagVersionId
    generations: Mapping[DatasetId, DatasetVersion]


@dataclass(frozen=True)
class Change:
    org: OrgId
    members: Sequence[Member]
    pointers: Sequence[Pointer]
    """What the active versions of the members serve."""
    readers: Sequence[ReleaseReader]
    """Of datasets of other DAGs, in the whole organisation."""

    @property
    def changed(self) -> Sequence[Member]:
        """Members with another version than the active one."""
        return [member for member in self.members if member.former is None or member.former.id != member.version]


async def resolve(pool: asyncpg.Pool, org_id: UUID, texts: Sequence[str], *, runtimes: Runtimes) -> Change:
    known = await catalog(pool, org_id, runtimes)
    given = await asyncio.to_thread(_by_name, texts)
    sql = queries("releases")
    active = {row.dag_name: row for row in await fetch_rows(pool, sql["list_active_versions"], ActiveDag, org_id)}
    readers = await fetch_rows(pool, sql["list_readers"], ReleaseReader, org_id)
    return await _Resolving(pool, OrgId(org_id), known, active, readers, given).run()


def _by_name(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, text in enumerate(texts):
        name = read_name(text) or f"#{number}"
        if name in found:
            raise InvalidRequest(f"two of the files are of DAG {name[:128]!r}", where=f"/dags/{number}")
        found[name] = text
    return found


@dataclass(frozen=True)
class _Resolving:
    database: Queryable
    org: OrgId
    known: Catalog
    active: Mapping[str, ActiveDag]
    readers: Sequence[ReleaseReader]
    given: Mapping[str, str]

    async def run(self) -> Change:
        dags = await asyncio.to_thread(parse_together, self.given, replace(self.known, declared={}))
        await asyncio.to_thread(self._agree_with_declarations, dags)
        while True:
            members, pointers = await self._members(dags)
            changed = _changed(members, pointers)
            missing = {reader.dag_name for reader in self.readers if reader.dataset_uuid in changed} - set(dags)
            if not missing:
                return Change(self.org, members, pointers, self.readers)
            texts = {name: self.active[name].yaml for name in sorted(missing)}
            dags |= await asyncio.to_thread(parse_together, texts, self._as_deployed)

    @property
    def _as_deployed(self) -> Catalog:
        return replace(self.known, declared={}, deployed=True)

    def _agree_with_declarations(self, dags: Mapping[str, Dag]) -> None:
        """A new version must agree with the current declarations of its buffered datasets."""
        for name, dag in dags.items():
            active = self.active.get(dag.name)
            is_new = active is None or active.yaml_hash != dag.yaml_hash
            if is_new and any((dag.name, dataset.name) in self.known.declared for dataset in dag.buffered):
                parse_together({name: self.given[name]}, self.known)

    async def _members(self, dags: Mapping[str, Dag]) -> tuple[list[Member], list[Pointer]]:
        """Until no generation that one of them reads of another changes any more."""
        names = [dag.name for dag in dags.values()]
        pointers = await fetch_rows(self.database, queries("releases")["list_pointers"], Pointer, self.org, names)
        published = {name: _published(dag, self.org) for name, dag in dags.items()}
        new: dict[DatasetName, DatasetVersion] = {}
        for _ in range(len(dags) + 1):
            members = [await self._member(dags[name], new, published, name) for name in dags]
            changed = _changed(members, pointers)
            found = {
                DatasetName(dataset_name): member.generations[dataset]
                for member, datasets in zip(members, published.values(), strict=True)
                for dataset_name, dataset in datasets.items()
                if dataset in changed
            }
            if found == new:
                return members, pointers
            new = found
        raise Conflict("these DAGs read each other in a circle", where="publish", hint="deploy one of them at a time")

    async def _member(
        self,
        dag: Dag,
        new: Mapping[DatasetName, DatasetVersion],
        published: Mapping[str, Mapping[str, DatasetId]],
        name: str,
    ) -> Member:
        foreign = {dataset: version for dataset, version in new.items() if dataset not in published[name]}
        basis = await find_basis(self.database, self.org, dag, self.known, foreign)
        others = [datasets for other, datasets in published.items() if other != name]
        renamed = {dataset_name: dataset for datasets in others for dataset_name, dataset in datasets.items()}
        active = self.active.get(dag.name)
        text = self.given[name] if name in self.given else self.active[name].yaml
        written = NewDag(dag, basis, text, renamed)
        return Member(
            written,
            active,
            name in self.given and (active is None or active.yaml_hash != dag.yaml_hash),
            written.version(self.org),
            generation_ids(dag, self.org, basis),
        )


def _published(dag: Dag, org: OrgId) -> dict[str, DatasetId]:
    ids = dataset_ids(dag, org)
    outputs = {str(item.name): ids[JobOutput(item.job, item.output)] for item in dag.publish}
    return outputs | {str(name): dataset for name, dataset in declared_ids(dag, org).items()}


def _changed(members: Sequence[Member], pointers: Sequence[Pointer]) -> set[UUID]:
    """Datasets with another generation than the active one."""
    served = {pointer.dataset_uuid: pointer.dataset_version for pointer in pointers}
    return {
        dataset
        for member in members
        for dataset, generation in member.generations.items()
        if served.get(dataset) != generation
    }
