"""The columns of a job's inputs, if the DAG or the running system determines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import assert_never

from tracelake.domain.dag.catalog import Catalog, Columns, Wired
from tracelake.domain.dag.model import BufferedDataset, DagInput, DeclaredDataset, ForeignDataset, Job, JobOutput


class KnownColumns:
    def __init__(self, jobs: Sequence[Job], buffered: Sequence[BufferedDataset], catalog: Catalog) -> None:
        self._jobs: Mapping[str, Job] = {job.name: job for job in jobs}
        self._declared: Mapping[str, Columns] = {dataset.name: dataset.declaration.names for dataset in buffered}
        self._catalog = catalog
        self._made: dict[str, Sequence[Columns | None]] = {}

    def of(self, item: DagInput) -> Columns | None:
        match item.upstream:
            case JobOutput(job, output):
                found = self._outputs(job)
                return found[output] if output < len(found) else None
            case DeclaredDataset(name):
                return self._declared.get(name)
            case ForeignDataset(name):
                return self._catalog.published[name].columns
            case _:
                assert_never(item.upstream)

    def _outputs(self, name: str) -> Sequence[Columns | None]:
        if name not in self._made:
            self._made[name] = ()  # of a job that reads itself, at any distance, nothing is known: that is refused
            self._made[name] = self._of_job(self._jobs[name])
        return self._made[name]

    def _of_job(self, job: Job) -> Sequence[Columns | None]:
        """A declared dataset has the columns that it is declared with, whatever writes it."""
        return [
            self._declared.get(output.dataset) if output.dataset else columns
            for output, columns in zip_longest(job.outputs, self._said_by_operator(job)[: len(job.outputs)])
        ]

    def _said_by_operator(self, job: Job) -> Sequence[Columns | None]:
        operator = self._catalog.operators.get(job.operator)
        if operator is None or operator.output_columns is None or operator.check_config(job.config):
            return ()
        wired = Wired(
            tuple(element.name for element in job.inputs),
            tuple(element.name for element in job.outputs),
            columns=tuple(self.of(element) for element in job.inputs),
        )
        return operator.output_columns(job.config, wired)
