"""What an operator is given: its task, what it reads and writes, and a way to say how far it is.

It knows nothing of leases, retries or queues. What it reads is pinned to a commit and narrowed to the task's part; what
it writes is staged in the attempt's own folder and counts when the Dispatcher has accepted the completion.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

from tracelake.domain.event import CursorScope, LabelScope, RangeScope, Scope
from tracelake.domain.object_names import Folder
from tracelake.domain.ranges import Range, subtract
from tracelake.domain.storage_locations import is_buffered
from tracelake.errors import InvalidRequest
from tracelake.operators.api.buffered_output import Buffer
from tracelake.operators.api.inputs import WHOLE, Input, Table
from tracelake.operators.api.outcome import say, scope_of
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.secrets import Secrets
from tracelake.ports import ObjectStore
from tracelake.runtime.redact import Redact
from tracelake.wire.task_messages import (
    EventBody,
    FilesAnswer,
    InvalidationBody,
    OutputRef,
    TaskPayload,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

C = TypeVar("C")


class TaskApi(Protocol):
    """A task's own calls to the Dispatcher, made from the thread in which its operator runs."""

    lost: threading.Event
    """Set when the lease is gone or the task canceled: stop at once, nothing counts any more."""
    asked_to_stop: threading.Event
    """Set when a source is to end in good order: pause, deactivation, shutdown."""

    def files(self, dataset: UUID, span: Range | None) -> FilesAnswer:
        """The files of a dataset that the task reads or writes."""
        ...

    def tell(
        self, events: Sequence[EventBody], invalidations: Sequence[InvalidationBody], state: Mapping[str, Any] | None
    ) -> None:
        """Events before the end, for sources, and with them the state to go on from: all of it is stored, or nothing.

        Returns when it is; waits out an outage.
        """
        ...

    def buffer_folder(self, dataset: UUID) -> Folder:
        """Where this attempt's batches for a buffered dataset go."""
        ...

    def publish(self, dataset: UUID, batch_uri: str, content_type: str, rows: int, size: int) -> None:
        """Hand a batch to the sink. Returns when it is on its way; waits out an outage."""
        ...

    def report(self, progress: Mapping[str, Any]) -> None:
        """How far the task is; shown to people, soon."""
        ...


@dataclass(frozen=True)
class Resources:
    """What a trusted operator may use besides its datasets. Never printed: it holds passwords and keys."""

    data_dsn: str = field(repr=False, default="")
    rpc_pools: Mapping[str, Any] = field(repr=False, default_factory=dict)
    folder: Path | None = None
    """Files that operators may read: the folder named in the settings."""


@dataclass(frozen=True)
class TaskContext(Generic[C]):
    task: TaskPayload
    org_id: UUID
    config: C
    session: SparkSession | None
    """None on a worker that was started without Spark: there run those that need none."""
    objects: ObjectStore
    api: TaskApi
    resources: Resources
    secrets: Secrets = field(default_factory=Secrets)
    """Those that the job names."""
    hide: Redact = str
    """Takes out what must not be told to people."""

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
        table = Table(self.resources.data_dsn, self.org_id, cursor)
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
        """The output whose partitions say what is written again whole: a buffered one has none."""
        return next((output for output in self.outputs if not isinstance(output, Buffer)), self.outputs[0])

    @property
    def state(self) -> Mapping[str, Any]:
        """What earlier tasks of this job remembered."""
        return self.task.state or {}

    @property
    def trigger(self) -> Input | None:
        """The input whose update made the task."""
        return next((item for item in self.inputs if item.ref.trigger), None)

    def input(self, name: str) -> Input:
        for item in self.inputs:
            if item.name == name:
                return item
        raise InvalidRequest(f"there is no input {name!r}", where="/config")

    def progress(self, done: int, total: int | None = None, message: str = "") -> None:
        self.api.report({"done": done, "total": total, "message": self.hide(message)})

    def ranges(self, output: Output) -> tuple[Range, ...]:
        """The partitions that this task has to write: its own range, or, if that was written before, those it touches.

        A range that was invalidated seldom begins and ends where partitions do, nor do inputs that are cut differently.
        Partitions are replaced whole: rows beside those of the range are made again as they were. Other ranges are
        written as they came, without asking; one that cuts a partition all the same is refused when it completes, and
        its next attempt asks.
        """
        if not isinstance(self.scope, RangeScope):
            raise InvalidRequest(f"a range is needed, and this is {say(self.scope)}", where="/scope")
        asked = self.scope.span
        if not self._may_cut:
            return (asked,)
        there = [
            Range(partition.start, partition.end + 1)
            for partition in self.api.files(output.ref.dataset_uuid, asked).partitions
            if partition.start is not None and partition.end is not None
        ]
        return tuple(sorted({*there, *subtract([asked], there)}))

    @property
    def _may_cut(self) -> bool:
        followed = [item for item in self.task.inputs if item.follows]
        return self.task.invalidation_id is not None or self.task.attempt > 1 or len(followed) > 1

    def parts(self, output: Output) -> tuple[Range | str, ...]:
        """What this task has to write: its ranges, its label, or all of it."""
        return self.ranges(output) if isinstance(self.scope, RangeScope) else (self.partition(),)

    def partition(self) -> Range | str:
        """What to name the partition that the task writes as it was told: the range, the label, or all of it."""
        match self.scope:
            case RangeScope(span):
                return span
            case LabelScope(label):
                return label
            case _:
                return WHOLE
