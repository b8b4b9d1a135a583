"""The context of an operator: its task, inputs, outputs and progress.

An operator does not deal with leases, retries or queues. Its inputs are pinned to a commit and narrowed to the task's
range or label; its outputs are staged in the attempt's folder and count when the Dispatcher accepts the completion.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

from tracelake.domain.access.object_names import Folder
from tracelake.domain.access.storage_locations import is_buffered
from tracelake.domain.event import CursorScope, LabelScope, RangeScope, Scope
from tracelake.domain.ranges import Range, subtract
from tracelake.errors import InvalidRequest
from tracelake.operators.api.buffered_output import Buffer
from tracelake.operators.api.inputs import WHOLE, Input, InputTable
from tracelake.operators.api.outcome import describe, scope_of
from tracelake.operators.api.outputs import Output
from tracelake.ports import ObjectStore
from tracelake.runtime.redact import Redact
from tracelake.wire.task.lifecycle import FireRef, OutputRef, TaskPayload
from tracelake.wire.task.outputs import EventBody, FilesAnswer, InvalidationBody

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

C = TypeVar("C")


class TaskApi(Protocol):
    """The calls of a task to the Dispatcher, made from the thread in which its operator runs."""

    lost: threading.Event
    """Set when the lease is lost or the task canceled: stop at once, its results do not count."""
    stop_requested: threading.Event
    """Set when a source should end in good order: pause, deactivation, shutdown."""

    def files(self, dataset: UUID, span: Range | None) -> FilesAnswer:
        """Return the files of a dataset that the task reads or writes."""
        ...

    def send_events(
        self, events: Sequence[EventBody], invalidations: Sequence[InvalidationBody], state: Mapping[str, Any] | None
    ) -> None:
        """Store events before the end of the task, for sources, with the state to resume from: all or nothing.

        Returns when they are stored; retries during an outage.
        """
        ...

    def buffer_folder(self, dataset: UUID) -> Folder:
        """Return the folder for this attempt's batches of a buffered dataset."""
        ...

    def publish(self, dataset: UUID, batch_uri: str, content_type: str, rows: int, size: int) -> None:
        """Publish a batch to the sink. Returns when the Dispatcher has stored it; retries during an outage."""
        ...

    def report(self, progress: Mapping[str, Any]) -> None:
        """Report the progress of the task, shown to users."""
        ...


@dataclass(frozen=True)
class Resources:
    """What a trusted operator may use besides its datasets. Never printed: it contains passwords and keys."""

    data_dsn: str = field(repr=False, default="")
    rpc_pools: Mapping[str, Any] = field(repr=False, default_factory=dict)
    folder: Path | None = None
    """The folder of files that operators may read, from the settings."""


class Secrets(Mapping[str, str]):
    """The secrets that a job names, by the names in the DAG. Its repr shows only the names."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        if name not in self._values:
            raise KeyError(f"this task has no secret {name!r}: does the job name it in `secrets`?")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"


@dataclass(frozen=True)
class TaskContext(Generic[C]):
    task: TaskPayload
    org_id: UUID
    config: C
    session: SparkSession | None
    """None on a worker without Spark, for operators that need none."""
    objects: ObjectStore
    api: TaskApi
    resources: Resources
    secrets: Secrets = field(default_factory=Secrets)
    """The secrets that the job names."""
    hide: Redact = str
    """Redacts secrets in texts shown to users."""

    @property
    def spark(self) -> SparkSession:
        if self.session is None:
            raise InvalidRequest(f"{self.task.operator} needs Spark, and this worker has none", where="/operator")
        return self.session

    @cached_property
    def scope(self) -> Scope:
        return scope_of(self.task)

    @cached_property
    def inputs(self) -> Sequence[Input]:
        """In the order of the DAG."""
        span = self.scope.span if isinstance(self.scope, RangeScope) else None
        label = self.scope.label if isinstance(self.scope, LabelScope) else None
        cursor = self.scope.cursor if isinstance(self.scope, CursorScope) else None
        table = InputTable(self.resources.data_dsn, self.org_id, cursor)
        return [Input(ref, self.session, self.objects, self.api, span, label, table) for ref in self.task.inputs]

    @cached_property
    def outputs(self) -> Sequence[Output]:
        return [self._output(ref) for ref in self.task.outputs]

    def _output(self, ref: OutputRef) -> Output:
        task = self.task
        if is_buffered(ref.storage_location):
            return Buffer(ref, task.task_id, task.attempt, self.objects, task.job.name, api=self.api)
        return Output(ref, task.task_id, task.attempt, self.objects, task.job.name)

    @property
    def first_in_files(self) -> Output:
        """The output whose partitions are replaced as a whole; buffered outputs have none."""
        return next((output for output in self.outputs if not isinstance(output, Buffer)), self.outputs[0])

    @property
    def state(self) -> Mapping[str, Any]:
        """The state that earlier tasks of this job stored."""
        return self.task.state or {}

    @property
    def trigger(self) -> Input | None:
        """The input whose update created the task."""
        return next((item for item in self.inputs if item.ref.trigger), None)

    @property
    def fired(self) -> FireRef | None:
        """What fired the source that this is a task of: a slot, a delivery with its body, or a user."""
        fired = self.task.fired
        return fired if isinstance(fired, FireRef) else None

    def input(self, name: str) -> Input:
        for item in self.inputs:
            if item.name == name:
                return item
        raise InvalidRequest(f"there is no input {name!r}", where="/config")

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self.api.report({"done": done, "total": total, "message": self.hide(message)})

    def ranges(self, output: Output) -> tuple[Range, ...]:
        """Return the partitions that this task writes: its range or, if that was written before, those it touches.

        An invalidated range seldom matches partitions, nor do inputs with different partitions. Partitions are replaced
        as a whole: the rows beside those of the range are made again unchanged. Other ranges are written as they are,
        without a call; one that cuts a partition is refused at its completion, and the next attempt looks up the
        partitions.
        """
        if not isinstance(self.scope, RangeScope):
            raise InvalidRequest(f"a range is needed, and this is {describe(self.scope)}", where="/scope")
        own = self.scope.span
        if not self._may_cut:
            return (own,)
        written = [
            Range(partition.start, partition.end + 1)
            for partition in self.api.files(output.ref.dataset_uuid, own).partitions
            if partition.start is not None and partition.end is not None
        ]
        return tuple(sorted({*written, *subtract([own], written)}))

    @property
    def _may_cut(self) -> bool:
        followed = [item for item in self.task.inputs if item.follows]
        return self.task.invalidation_id is not None or self.task.attempt > 1 or len(followed) > 1

    def parts(self, output: Output) -> tuple[Range | str, ...]:
        """Return what this task writes: its ranges, its label, or the whole dataset."""
        return self.ranges(output) if isinstance(self.scope, RangeScope) else (self.partition(),)

    def partition(self) -> Range | str:
        """Return the partition of the task's own scope: the range, the label, or the whole dataset."""
        match self.scope:
            case RangeScope(span):
                return span
            case LabelScope(label):
                return label
            case _:
                return WHOLE
