"""Plans a change: what it does to each dataset, why, about how much is built, and who reads it. Changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.dags.deploy import Runtimes
from tracelake.dispatcher.dags.proposals import other_proposals
from tracelake.dispatcher.releases.estimate_added import input_size
from tracelake.dispatcher.releases.predict_blocks import predict_blocks
from tracelake.dispatcher.releases.predict_changes import FormerJob, PredictedChanges, predict_changes
from tracelake.dispatcher.releases.resolve import Change, Member, Pointer, resolve
from tracelake.domain.dag.hashes import canonical_json, dataset_ids, declared_ids, job_hash
from tracelake.domain.dag.model import Dag, SourceKind
from tracelake.domain.ids import DatasetId, OrgId
from tracelake.domain.ranges import Range, format_partition_key
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.user.releases import Action, Cause, Plan, PlannedDag, PlannedDataset, UnreadChange

VOLATILE = frozenset({"partitions", "reused", "rows", "bytes", "ranges", "more_ranges", "seconds", "requests", "users"})
"""What changes with every commit and query: not part of a plan's hash."""
RANGES = 100
"""Of a dataset: so many are listed at most."""


class GenerationSize(Row, frozen=True):
    dataset_version: UUID
    partitions: int
    rows: int
    bytes: int
    hashed: bool
    starts: list[int]
    stops: list[int]
    ranges: int

    @property
    def listed(self) -> list[str]:
        return [format_partition_key(Range(*edges)) for edges in zip(self.starts, self.stops, strict=True)]


class JobUse(Row, frozen=True):
    """Of one task, on average."""

    dag_name: str
    job_name: str
    seconds: float
    requests: float


class QueryUsers(Row, frozen=True):
    dataset_uuid: UUID
    users: int


@dataclass(frozen=True)
class Planned:
    plan: Plan
    change: Change


async def plan_change(pool: asyncpg.Pool, org_id: UUID, texts: Sequence[str], *, runtimes: Runtimes) -> Planned:
    change = await resolve(pool, org_id, texts, runtimes=runtimes)
    known = await _measure(pool, change)
    datasets = [item for member in change.members for item in _datasets(change, member, known)]
    dags = [_planned_dag(member) for member in change.members]
    warnings = [text for member in change.members for text in _warnings(member, known)]
    warnings += [text for member in change.members for text in await _proposals(pool, change.org, member)]
    return Planned(Plan(_hash(dags, datasets), bool(change.changed), dags, datasets, warnings), change)


@dataclass(frozen=True)
class _Known:
    """What the ledger, the tasks and the audit say about the datasets of a change."""

    sizes: Mapping[UUID, GenerationSize]
    uses: Mapping[tuple[str, str], JobUse]
    users: Mapping[UUID, int]
    hashes: Mapping[tuple[str, str], str]
    """Of the jobs of the active versions."""
    predicted: PredictedChanges
    built: Mapping[UUID, GenerationSize]
    """By generation that serves, the part that is built anew, where the other files are used again."""


async def _measure(database: Queryable, change: Change) -> _Known:
    sql, names = queries("releases"), [member.new.dag.name for member in change.members]
    generations = {pointer.dataset_version for pointer in change.pointers}
    generations |= {generation for member in change.members for generation in member.generations.values()}
    generations |= {generation for member in change.members for generation in member.new.basis.foreign.values()}
    datasets = list({dataset for member in change.members for dataset in member.generations})
    sizes = await fetch_rows(database, sql["measure_generations"], GenerationSize, list(generations), RANGES)
    uses = await fetch_rows(database, sql["measure_jobs"], JobUse, change.org, names)
    users = await fetch_rows(database, sql["count_query_users"], QueryUsers, change.org, datasets)
    jobs = await fetch_rows(database, sql["list_job_hashes"], FormerJob, change.org, names)
    hashed = {size.dataset_version for size in sizes if size.hashed}
    predicted = await asyncio.to_thread(predict_changes, change, jobs, hashed.__contains__)
    return _Known(
        {size.dataset_version: size for size in sizes},
        {(use.dag_name, use.job_name): use for use in uses},
        {row.dataset_uuid: row.users for row in users},
        {(job.dag_name, job.job_name): job.config_hash for job in jobs},
        predicted,
        await _measure_built(database, predicted),
    )


async def _measure_built(database: Queryable, predicted: PredictedChanges) -> Mapping[UUID, GenerationSize]:
    blocks = await predict_blocks(database, predicted)
    if blocks is None:
        return {}
    found = await asyncio.to_thread(
        lambda: {generation: blocks.built(dataset) for dataset, generation in predicted.served.items()}
    )
    known = {generation: _multirange(spans) for generation, spans in found.items() if spans is not None}
    if not known:
        return {}
    asked = list(known), RANGES, list(known.values())
    rows = await fetch_rows(database, queries("releases")["measure_built"], GenerationSize, *asked)
    return {generation: _nothing(generation) for generation in known} | {row.dataset_version: row for row in rows}


def _nothing(generation: UUID) -> GenerationSize:
    return GenerationSize(generation, partitions=0, rows=0, bytes=0, hashed=False, starts=[], stops=[], ranges=0)


def _multirange(spans: Sequence[Range]) -> str:
    return "{" + ",".join(f"[{span.start},{span.stop})" for span in spans) + "}"


def _planned_dag(member: Member) -> PlannedDag:
    cause: Literal["added", "edited", "upstream", "unchanged"] = "upstream"
    if member.former is None:
        cause = "added"
    elif member.edited:
        cause = "edited"
    elif member.former.id == member.version:
        cause = "unchanged"
    former = None if member.former is None else member.former.id
    return PlannedDag(dag=member.new.dag.name, cause=cause, dag_version_id=member.version, former=former)


def _datasets(change: Change, member: Member, known: _Known) -> list[PlannedDataset]:
    served = {pointer.dataset_uuid: pointer for pointer in change.pointers if pointer.dag_name == member.new.dag.name}
    labels = _labels(member.new.dag, change.org)
    rows = [
        _Dataset(change, member, known, dataset, label, job, served.get(dataset)).planned()
        for dataset, (label, job) in labels.items()
    ]
    gone = [pointer for dataset, pointer in served.items() if dataset not in labels]
    return rows + [
        _Dataset(change, member, known, DatasetId(p.dataset_uuid), p.label, p.job_name, p).dropped() for p in gone
    ]


def _labels(dag: Dag, org: OrgId) -> dict[DatasetId, tuple[str, str | None]]:
    """The name and the job of each dataset of a DAG."""
    names = {(item.job, item.output): str(item.name) for item in dag.publish}
    declared = declared_ids(dag, org)
    found: dict[DatasetId, tuple[str, str | None]] = {
        dataset: (names.get((output.job, output.output), f"{output.job}[{output.output}]"), output.job)
        for output, dataset in dataset_ids(dag, org).items()
    }
    return found | {dataset: (str(name), None) for name, dataset in declared.items()}


@dataclass(frozen=True)
class _Dataset:
    change: Change
    member: Member
    known: _Known
    id: DatasetId
    label: str
    job: str | None
    served: Pointer | None

    def planned(self) -> PlannedDataset:
        generation = self.member.generations[self.id]
        former = None if self.served is None else self.served.dataset_version
        if generation == former:
            return self._row("metadata" if self.member.edited else "unchanged", "carry on", generation)
        if self.known.sizes.get(generation) is not None:
            return self._row(self._cause(), "reuse", generation)
        unread = self.known.predicted.unread(self.id)
        if unread is not None:
            return self._unread(unread, generation)
        row = self._row(self._cause(), "build", generation)
        return row if self.served is not None else self._added(row)

    def _added(self, row: PlannedDataset) -> PlannedDataset:
        """Nothing is known of its rows: only how much its job has to process."""
        size = input_size(self.known.predicted, self.known.sizes, self.id)
        if size is None:
            return row
        more = size.ranges - len(size.starts)
        return msgspec.structs.replace(row, partitions=size.partitions, ranges=size.listed, more_ranges=more)

    def _unread(self, unread: Sequence[UnreadChange], generation: UUID) -> PlannedDataset:
        """Nothing is to be built: each partition of the active generation is one of the new one."""
        row = self._row("upstream", "reuse", generation)
        none = {"partitions": 0, "rows": 0, "bytes": 0, "seconds": None, "requests": None}
        nowhere = {"ranges": [], "more_ranges": 0}
        return msgspec.structs.replace(row, **none, **nowhere, reused=row.partitions, unread=list(unread))

    def dropped(self) -> PlannedDataset:
        return self._row("removed", "drop", None)

    def _cause(self) -> Cause:
        dag = self.member.new.dag
        job = next((job for job in dag.jobs if job.name == self.job), None)
        former = self.known.hashes.get((dag.name, self.job or ""))
        if self.served is None or former is None:
            return "added"
        if job is not None and job_hash(dag, job, self.member.new.basis) != former:
            return "edited"
        return "upstream"

    def _row(self, cause: Cause, action: Action, generation: UUID | None) -> PlannedDataset:
        former = None if self.served is None else self.served.dataset_version
        held = self.known.sizes.get(former) if former else None
        there = self.known.sizes.get(generation) if generation else None
        part = self.known.built.get(former) if former and action == "build" else None
        size, builds = part or held, action in {"build", "reuse"}
        use = self.known.uses.get((self.member.new.dag.name, self.job or "")) if size and builds else None
        return PlannedDataset(
            dag=self.member.new.dag.name,
            job=self.job,
            dataset=self.label,
            cause=cause,
            action=action,
            generation=generation,
            former=former,
            partitions=size.partitions if size and builds else 0,
            reused=held.partitions - part.partitions if held and part else there.partitions if there else 0,
            rows=size.rows if size and builds else 0,
            bytes=size.bytes if size and builds else 0,
            ranges=size.listed if size and builds else [],
            more_ranges=size.ranges - len(size.starts) if size and builds else 0,
            seconds=use.seconds * size.partitions if use and size else None,
            requests=round(use.requests * size.partitions) if use and size else None,
            readers=[f"{r.dag_name}.{r.job_name}" for r in self.change.readers if r.dataset_uuid == self.id],
            users=self.known.users.get(self.id, 0),
        )


def _warnings(member: Member, known: _Known) -> list[str]:
    """Changed always-on sources run twice for a while."""
    dag, found = member.new.dag, []
    for job in dag.jobs:
        if job.source is None or job.source.kind is not SourceKind.ALWAYS_ON:
            continue
        former = known.hashes.get((dag.name, job.name))
        if former is not None and former != job_hash(dag, job, member.new.basis):
            found.append(
                f"{dag.name}.{job.name}: a changed always-on source starts from its beginning, and runs beside the"
                " active one until the release is promoted"
            )
    return found


async def _proposals(database: Queryable, org: OrgId, member: Member) -> list[str]:
    dag = member.new.dag
    return [f"{dag.name}.{item.name}: {item.reason}" for item in await other_proposals(database, org, dag)]


def _hash(dags: Sequence[PlannedDag], datasets: Sequence[PlannedDataset]) -> str:
    rows = [
        {name: getattr(row, name) for name in row.__struct_fields__ if name not in VOLATILE}
        for row in (*dags, *datasets)
    ]
    text = canonical_json([{name: str(value) for name, value in row.items()} for row in rows])
    return hashlib.sha256(text.encode()).hexdigest()
