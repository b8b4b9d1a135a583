"""Estimates how much is built of a dataset that is new: as much as its job has to process of what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar
from uuid import UUID

from tracelake.dispatcher.dags.catalog import operators
from tracelake.dispatcher.releases.predict_changes import PredictedChanges, WrittenDataset
from tracelake.domain.dag.model import DagInput, ForeignDataset
from tracelake.domain.ids import DatasetId


class Countable(Protocol):
    @property
    def partitions(self) -> int: ...


S = TypeVar("S", bound=Countable)


def input_size(
    changes: PredictedChanges, sizes: Mapping[UUID, S], dataset: UUID, seen: frozenset[UUID] = frozenset()
) -> S | None:
    """Of the largest input that triggers the job of a dataset, or, if that is new too, of that of its job.

    None: it has none, it makes its whole output by one task, or nothing is there.
    """
    written = changes.written.get(dataset)
    if written is None or dataset in seen or _makes_whole(written):
        return None
    above = seen | {dataset}
    found = [_held(changes, sizes, written, item, above) for item in written.job.inputs if item.trigger]
    return max((size for size in found if size is not None), key=lambda size: size.partitions, default=None)


def _held(
    changes: PredictedChanges, sizes: Mapping[UUID, S], written: WrittenDataset, item: DagInput, seen: frozenset[UUID]
) -> S | None:
    dataset = changes.dataset_of(written.member, item)
    if dataset is None:
        named = item.upstream.name if isinstance(item.upstream, ForeignDataset) else None
        generation = None if named is None else written.member.new.basis.foreign.get(named)
        return None if generation is None else sizes.get(generation)
    served, own = changes.served.get(dataset), changes.written[dataset].member.generations[DatasetId(dataset)]
    there = sizes.get(own) or (None if served is None else sizes.get(served))
    return there or input_size(changes, sizes, dataset, seen)


def _makes_whole(written: WrittenDataset) -> bool:
    operator = operators().get(written.job.operator)
    return operator is not None and operator.makes_whole is not None and operator.makes_whole(written.job.config)
