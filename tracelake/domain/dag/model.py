"""A DAG that has passed every check, with every default filled in; `docs/reference/dag_yaml.md` explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tracelake.domain.buffered import Declaration
from tracelake.domain.cutover import CutoverLimit
from tracelake.domain.filter.tree import Filter
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.ids import DagName, DatasetName, JobName, YamlHash
from tracelake.domain.sources.decide_slots import Overlap
from tracelake.domain.sources.schedule import Dst
from tracelake.domain.sources.signatures import HookScheme
from tracelake.errors import Problem


class Activation(StrEnum):
    SOURCE = "source"
    REACTIVE = "reactive"


class SourceKind(StrEnum):
    ALWAYS_ON = "always_on"
    CRON = "cron"
    WEBHOOK = "webhook"
    MANUAL = "manual"


FIRED: Final = frozenset({SourceKind.CRON, SourceKind.WEBHOOK, SourceKind.MANUAL})
"""Sources that run when something fires them, and end; an always-on source runs permanently."""


class ExecutionStrategy(StrEnum):
    PER_UPDATE = "PerUpdate"
    PER_PARTITION = "PerPartition"


class UpdateStrategy(StrEnum):
    APPEND = "append"
    REPLACE = "replace"


class Storage(StrEnum):
    PARQUET = "parquet"
    """Files, committed by pointer."""
    POSTGRES = "postgres"
    """A hot table that a trusted operator writes itself."""
    BUFFERED = "buffered"
    """A table that the sink fills from published batches."""


@dataclass(frozen=True, slots=True)
class Source:
    """What starts a source. Fields of other kinds are None."""

    kind: SourceKind
    schedule: str | None = None
    tz: str | None = None
    dst: Dst | None = None
    overlap: Overlap | None = None
    catch_up_seconds: int | None = None
    """None: slots that were missed do not fire later."""
    jitter_seconds: int | None = None
    pause_on_failure: bool | None = None
    scheme: HookScheme | None = None
    secret: str | None = None
    tolerance_seconds: int | None = None
    """None: the scheme signs no time."""
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Bootstrap:
    reset_outputs: bool = False


@dataclass(frozen=True, slots=True)
class DagOutput:
    index: int
    name: str
    storage: Storage
    dataset: DatasetName | None = None
    """The declared dataset that it writes to; None: one of its own."""


@dataclass(frozen=True, slots=True, order=True)
class JobOutput:
    """An output of a job of this DAG."""

    job: JobName
    output: int


@dataclass(frozen=True, slots=True)
class ForeignDataset:
    """A dataset that another DAG of the org publishes."""

    name: DatasetName


@dataclass(frozen=True, slots=True)
class DeclaredDataset:
    """A buffered dataset that this DAG declares."""

    name: DatasetName


@dataclass(frozen=True, slots=True)
class DagInput:
    name: str
    upstream: JobOutput | DeclaredDataset | ForeignDataset
    where: Filter | None = None
    trigger: bool = True
    """Whether its updates make tasks; without, it is only read."""


@dataclass(frozen=True, slots=True)
class Scaling:
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    backoff_seconds: int = 30
    max_backoff_seconds: int = 600


@dataclass(frozen=True, slots=True)
class RunDefaults:
    """The defaults of a job, per runtime."""

    timeout_seconds: int = 3_600
    heartbeat_timeout_seconds: int = 120
    heartbeat_interval_seconds: int | None = None
    """None: a quarter of the lease."""
    max_attempts: int = 3
    max_platform_failures: int = 100
    retry: Retry = Retry()

    def interval(self, lease: int) -> int:
        """Heartbeats per lease; often enough that one lost heartbeat does not lose it."""
        own = self.heartbeat_interval_seconds
        return own if own is not None and 2 * own <= lease else max(1, lease // 4)


@dataclass(frozen=True, slots=True)
class Udf:
    bundle: str
    sha256: str
    handler: str


@dataclass(frozen=True, slots=True)
class Job:
    name: JobName
    activation: Activation
    runtime: str
    operator: str
    source: Source | None = None
    bootstrap: Bootstrap | None = None
    execution_strategy: ExecutionStrategy | None = None
    """None for sources."""
    idle_timeout_seconds: int | None = None
    """None: never (and for sources)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """As written: the operator's own defaults are the operator's."""
    inputs: tuple[DagInput, ...] = ()
    outputs: tuple[DagOutput, ...] = ()
    update_strategy: UpdateStrategy = UpdateStrategy.REPLACE
    unique_key: tuple[str, ...] = ()
    scaling: Scaling = Scaling()
    priority: Priority = Priority.NORMAL
    max_queue_depth: int | None = None
    max_queue_age_seconds: int | None = None
    resume_queue_depth: int | None = None
    """Producers resume below it; None: half of the most."""
    resume_queue_age_seconds: int | None = None
    timeout_seconds: int | None = None
    """None only for always-on sources, which run until they are stopped."""
    heartbeat_timeout_seconds: int = 120
    """The lease: an attempt without a heartbeat for so long is lost."""
    heartbeat_interval_seconds: int = 30
    max_attempts: int = 3
    max_platform_failures: int = 100
    """So many attempts may the platform end; then the task has failed for good. 0: an always-on source is restarted."""
    retry: Retry = Retry()
    udf: Udf | None = None
    secrets: tuple[str, ...] = ()
    replay: bool = False
    """Its effects outside its own datasets are repeated for data from before the version's activation."""
    cutover: Mapping[str, CutoverLimit] = field(default_factory=dict)
    """How far its outputs may differ from those that serve for a release to be promoted; by limit."""


@dataclass(frozen=True, slots=True)
class Publication:
    name: DatasetName
    job: JobName
    output: int
    read_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferedDataset:
    """A table with many writers, which the sink fills."""

    name: DatasetName
    declaration: Declaration
    read_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dag:
    name: DagName
    jobs: tuple[Job, ...]
    """In the order of the file."""
    publish: tuple[Publication, ...]
    canonical: str
    """The document as JSON with sorted keys: what is left when comments, order of keys and quoting are taken away."""
    yaml_hash: YamlHash
    buffered: tuple[BufferedDataset, ...] = ()
    tuning: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By operator: settings that change nothing in what a job produces."""
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    """Fields that have no effect, each at its place in the file."""

    def job(self, name: JobName) -> Job:
        return {job.name: job for job in self.jobs}[name]

    def writers(self, dataset: DatasetName) -> tuple[JobName, ...]:
        """The jobs that write a declared dataset."""
        return tuple(job.name for job in self.jobs if any(item.dataset == dataset for item in job.outputs))
