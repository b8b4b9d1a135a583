"""The columns of an input that can decide what a job writes."""

from __future__ import annotations

from tracelake.dispatcher.dags.catalog import operators
from tracelake.domain.dag.model import DagInput, Job
from tracelake.domain.filter.tree import columns_of
from tracelake.wire.task.markers import NUMBER


def columns_read(job: Job, job_input: DagInput) -> list[str] | None:
    """In small letters: those of the operator, of the input's filter, and the one that ranges are selected by.

    None: any column may.
    """
    operator = operators().get(job.operator)
    if operator is None or operator.columns_read is None:
        return None
    named = operator.columns_read(job.config, [item.name for item in job.inputs])[job_input.name]
    if named is None:
        return None
    filtered = () if job_input.where is None else columns_of(job_input.where)
    names = {name.lower() for name in (NUMBER, *named, *filtered)}
    # Spark ignores the case of names, in ways that differ from Postgres's outside of ASCII.
    return sorted(names) if all(name.isascii() for name in names) else None
