"""A DAG as it was written, each field of its type, before anything is wired or looked up. Each part knows its path."""

from __future__ import annotations

from dataclasses import dataclass

from tracelake.domain.dag.buffered import BufferedDraft
from tracelake.domain.dag.model import Job, Storage
from tracelake.domain.dag.yaml_nodes import Path
from tracelake.domain.filter.tree import Filter
from tracelake.domain.ids import DagName


@dataclass(frozen=True, slots=True)
class InputReference:
    """`{job, output}` or `{dataset}`, not yet looked up. Empty where it was refused."""

    path: Path
    job: str | None = None
    output: str | int | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True)
class InputDraft:
    path: Path
    source: InputReference
    name: str | None
    where: Filter | None
    trigger: bool = True


@dataclass(frozen=True, slots=True)
class OutputDraft:
    path: Path
    name: str
    storage: Storage | None
    dataset: str | None = None
    """The declared dataset that it writes to."""


@dataclass(frozen=True, slots=True)
class JobDraft:
    path: Path
    given: frozenset[str]
    job: Job
    """Without inputs and outputs; `""` where a required text is missing or was refused."""
    inputs: tuple[InputDraft, ...] | None
    """None where there are none, or where what is there is not a list."""
    outputs: tuple[OutputDraft, ...] | None
    """None where the operator decides."""


@dataclass(frozen=True, slots=True)
class PublicationDraft:
    path: Path
    name: str | None
    source: InputReference
    read_roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DagDraft:
    name: DagName
    jobs: tuple[JobDraft, ...]
    publish: tuple[PublicationDraft, ...]
    buffered: tuple[BufferedDraft, ...] = ()
