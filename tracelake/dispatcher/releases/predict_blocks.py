"""Predicts which blocks of the datasets of a change are built, where a list of addresses was edited.

As `predict_changes`, only for the plan. A task whose job differs only in its list uses files again if no address that
comes or goes may be in what it reads; so do the tasks behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.dags.columns_read import columns_read
from tracelake.dispatcher.releases.predict_changes import (
    FormerJob,
    PredictedChanges,
    WrittenDataset,
    is_wired_as_before,
)
from tracelake.domain.dag.catalog import SAME
from tracelake.domain.dag.hashes import canonical_json, listed_addresses, memo_hash
from tracelake.domain.dag.model import DagInput
from tracelake.domain.ranges import Range, merge
from tracelake.store.queries import Queryable, Row, fetch_rows, queries

Blocks = tuple[Range, ...] | None
"""None: anywhere."""


class ListedBlocks(Row, frozen=True):
    """Where an address that comes or goes may be in the input of a job."""

    job_id: UUID
    start: int | None
    stop: int | None
    labels: bool
    """Also in partitions without blocks."""

    @property
    def spans(self) -> Sequence[Range]:
        return () if self.start is None or self.stop is None else (Range(self.start, self.stop),)


@dataclass(frozen=True)
class PredictedBlocks:
    changes: PredictedChanges
    listed: Mapping[UUID, Blocks]
    """By job of the active version."""
    known: dict[UUID, Blocks] = field(default_factory=dict)

    def built(self, dataset: UUID) -> Blocks:
        """The blocks for which tasks run."""
        if dataset not in self.known:
            self.known[dataset] = None  # what is made from itself is built
            self.known[dataset] = self._find(dataset)
        return self.known[dataset]

    def _find(self, dataset: UUID) -> Blocks:
        written = self.changes.written.get(dataset)
        former = None if written is None else _former(self.changes, written)
        if written is None or former is None or former.makes_whole:
            return None
        return _joined([self.listed.get(former.job_id, ()), *(self._read(written, i) for i in written.job.inputs)])

    def _read(self, written: WrittenDataset, item: DagInput) -> Blocks:
        """Where the rows of an input differ in columns that its job reads."""
        dataset = self.changes.dataset_of(written.member, item)
        if dataset is None or self.changes.of(dataset) == SAME:
            return ()
        changed, read = self.changes.of_input(written.member, item), columns_read(written.job, item)
        if changed is not None and read is not None and not changed & set(read):
            return ()
        blocks = self.built(dataset)
        return None if blocks and not item.trigger else blocks  # read as a whole by every task


async def predict_blocks(database: Queryable, changes: PredictedChanges) -> PredictedBlocks | None:
    """None: no list was edited, so what is built is built everywhere."""
    lists = await asyncio.to_thread(lambda: list(_edited_lists(changes)))
    if not lists:
        return None
    edits = [(job, address) for job, addresses in lists for address in addresses]
    asked = [job for job, _ in edits], [address for _, address in edits]
    rows = await fetch_rows(database, queries("releases")["find_listed_blocks"], ListedBlocks, *asked) if edits else []
    spans: dict[UUID, list[Range]] = {}
    for row in rows:
        spans.setdefault(row.job_id, []).extend(row.spans)
    unknown = {row.job_id for row in rows if row.labels}
    return PredictedBlocks(changes, {job: None if job in unknown else merge(found) for job, found in spans.items()})


def _edited_lists(changes: PredictedChanges) -> Iterable[tuple[UUID, Sequence[bytes]]]:
    """By job of the active version, the addresses that only one of the two lists has."""
    for written in {id(item.job): item for item in changes.written.values()}.values():
        before = changes.former.get((written.member.new.dag.name, written.job.name))
        if before is None or canonical_json(before.config) == canonical_json(written.job.config):
            continue  # what follows parses its query
        former = _former(changes, written)
        listed = listed_addresses(written.job, operators().get(written.job.operator))
        if former is not None and listed is not None:
            yield former.job_id, sorted(listed.addresses ^ set(former.addresses or ()))


def _former(changes: PredictedChanges, written: WrittenDataset) -> FormerJob | None:
    """The job of the active version, if it differs in nothing but its list of addresses."""
    job, former = written.job, changes.former.get((written.member.new.dag.name, written.job.name))
    if former is None or former.memo_hash is None or former.memo_hash != memo_hash(job, operators().get(job.operator)):
        return None
    return former if is_wired_as_before(written.member, job, former) else None


def _joined(parts: Sequence[Blocks]) -> Blocks:
    known = [part for part in parts if part is not None]
    return merge(span for part in known for span in part) if len(known) == len(parts) else None
