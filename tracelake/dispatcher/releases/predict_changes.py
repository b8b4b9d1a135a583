"""Predicts in which columns the datasets of a change can differ from what serves, and which of them nobody reads.

Only for the plan: when a release is built, tasks are completed with files that are there by the content of the columns
that they read (`versions/reuse_outputs.py`), whatever was predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.dags.columns_read import columns_read
from tracelake.dispatcher.releases.resolve import Change, Member
from tracelake.domain.dag.catalog import SAME, ChangedFields
from tracelake.domain.dag.hashes import config_hash, dataset_ids, job_hash, memo_hash
from tracelake.domain.dag.model import DagInput, DeclaredDataset, ForeignDataset, Job, JobOutput
from tracelake.domain.filter.tree import columns_of
from tracelake.domain.ids import DagName, DatasetId
from tracelake.errors import BadInput
from tracelake.store.queries import Row
from tracelake.wire.task.markers import NUMBER
from tracelake.wire.user.releases import UnreadChange


class FormerJob(Row, frozen=True):
    """A job of an active version."""

    dag_name: str
    job_name: str
    job_id: UUID
    config_hash: str
    config: dict[str, Any]
    memo_hash: str | None
    addresses: list[bytes] | None
    makes_whole: bool


@dataclass(frozen=True)
class WrittenDataset:
    """Which job of which member writes a dataset, and where in its outputs."""

    member: Member
    job: Job
    place: int


@dataclass(frozen=True)
class PredictedChanges:
    change: Change
    former: Mapping[tuple[str, str], FormerJob]
    is_hashed: Callable[[UUID], bool]
    """Whether the columns of every partition of a generation have hashes."""
    written: Mapping[UUID, WrittenDataset]
    served: Mapping[UUID, UUID]
    named: Mapping[str, UUID]
    """The datasets that members publish, by name."""
    ids: Mapping[DagName, Mapping[JobOutput, DatasetId]]
    """Of the outputs of each member, by its DAG."""
    known: dict[UUID, ChangedFields] = field(default_factory=dict)

    def of(self, dataset: UUID) -> ChangedFields:
        if dataset not in self.known:
            self.known[dataset] = None  # what is made from itself may change in any way
            self.known[dataset] = self._find(dataset)
        return self.known[dataset]

    def unread(self, dataset: UUID) -> Sequence[UnreadChange] | None:
        """The inputs that change only in columns that its job does not read; None: it is to be built."""
        written = self.written.get(dataset)
        if written is None or self.of(dataset) != SAME or self.generation_of(dataset) == self.served.get(dataset):
            return None
        job, former = written.job, self.former.get((written.member.new.dag.name, written.job.name))
        if former is None or job_hash(written.member.new.dag, job, written.member.new.basis) != former.config_hash:
            return None
        return [self._unread(written, item) for item in job.inputs if self._changes(written.member, item)]

    def _find(self, dataset: UUID) -> ChangedFields:
        generation, written = self.generation_of(dataset), self.written.get(dataset)
        if generation is None or generation == self.served.get(dataset):
            return SAME
        if written is None:
            return None
        return self._of_job(written.member, written.job)[written.place]

    def _of_job(self, member: Member, job: Job) -> Sequence[ChangedFields]:
        operator, former = operators().get(job.operator), self.former.get((member.new.dag.name, job.name))
        unknown: list[ChangedFields] = [None for _ in job.outputs]
        if operator is None or operator.changed_columns is None or former is None:
            return unknown
        if memo_hash(job, operator) is None or not is_wired_as_before(member, job, former):
            return unknown
        inputs = {item.name: self.of_input(member, item) for item in job.inputs}
        try:
            found = operator.changed_columns(former.config, job.config, inputs)
        except BadInput:  # the former config would be refused today
            return unknown
        return [*found[: len(unknown)], *unknown[len(found) :]]

    def of_input(self, member: Member, item: DagInput) -> ChangedFields:
        dataset = self.dataset_of(member, item)
        changed = SAME if dataset is None else self.of(dataset)
        if dataset is None or not changed:
            return changed
        selecting = {NUMBER, *(name.lower() for name in (columns_of(item.where) if item.where else ()))}
        return changed if self.is_hashed(self.served[dataset]) and not changed & selecting else None

    def _changes(self, member: Member, item: DagInput) -> bool:
        dataset = self.dataset_of(member, item)
        return dataset is not None and self.generation_of(dataset) not in {None, self.served.get(dataset)}

    def _unread(self, written: WrittenDataset, item: DagInput) -> UnreadChange:
        changed = sorted(self.of_input(written.member, item) or ())
        return UnreadChange(input=item.name, changed=changed, read=columns_read(written.job, item))

    def dataset_of(self, member: Member, item: DagInput) -> UUID | None:
        """None: it has one generation for good, or is not part of the change."""
        match item.upstream:
            case JobOutput():
                found = self.ids[member.new.dag.name][item.upstream]
                return found if found in self.written else None
            case ForeignDataset(name):
                return self.named.get(str(name))
            case DeclaredDataset():
                return None

    def generation_of(self, dataset: UUID) -> UUID | None:
        written = self.written.get(dataset)
        return None if written is None else written.member.generations[DatasetId(dataset)]


def predict_changes(change: Change, former: Sequence[FormerJob], is_hashed: Callable[[UUID], bool]) -> PredictedChanges:
    written: dict[UUID, WrittenDataset] = {}
    named: dict[str, UUID] = {}
    all_ids = {member.new.dag.name: dataset_ids(member.new.dag, change.org) for member in change.members}
    for member in change.members:
        ids = all_ids[member.new.dag.name]
        for job in member.new.dag.jobs:
            for place, output in enumerate(job.outputs):
                if output.dataset is None:
                    written[ids[JobOutput(job.name, output.index)]] = WrittenDataset(member, job, place)
        named |= {str(item.name): ids[JobOutput(item.job, item.output)] for item in member.new.dag.publish}
    served = {pointer.dataset_uuid: pointer.dataset_version for pointer in change.pointers}
    jobs = {(job.dag_name, job.job_name): job for job in former}
    return PredictedChanges(change, jobs, is_hashed, written, served, named, all_ids)


def is_wired_as_before(member: Member, job: Job, former: FormerJob) -> bool:
    """Whether nothing but its config can differ."""
    dag = member.new.dag
    if job_hash(dag, job, member.new.basis) == former.config_hash:
        return True
    return config_hash(replace(job, config=former.config), dag.tuning.get(job.operator, ())) == former.config_hash
