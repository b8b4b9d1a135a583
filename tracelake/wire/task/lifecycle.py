"""Messages about a task: claim, payload, heartbeat, logs, stop.

The shapes of the specification, and what it leaves open: `task` in a claim also says what the task writes, reads and
how often it must send a heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID, uuid5

import msgspec

from tracelake.domain.text.redaction import redact_tokens
from tracelake.wire.message import AttemptNumber, Fenced, Message, Number, ShortText

MAX_CLAIMS = 100
TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


class ClaimRequest(Message, frozen=True):
    task_id: UUID
    worker_id: ShortText
    claim_id: UUID | None = None
    """Chosen by the worker, the same in a retry: a claim whose answer was lost is then answered again, and not taken
    for another worker's."""


class ClaimBatchRequest(Message, frozen=True):
    """Several claims of one worker, answered together and in their order."""

    task_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=MAX_CLAIMS)]
    worker_id: ShortText
    claim_id: UUID | None = None

    def one_by_one(self) -> list[ClaimRequest]:
        """Each place in the list is a claim of its own: a task that is named twice is claimed once, also in a retry."""
        return [
            ClaimRequest(item, self.worker_id, uuid5(self.claim_id, str(place)) if self.claim_id else None)
            for place, item in enumerate(self.task_ids)
        ]


class JobRef(Message, frozen=True):
    dag_name: str
    name: str


class InputRef(Message, frozen=True):
    """One input as the task reads it: a pinned commit, narrowed to the event's part and by the filter."""

    dataset_uuid: UUID
    dataset_version: UUID
    commit: int | None = None
    name: str | None = None
    alias: str = ""
    """How the DAG calls it."""
    storage_location: str | None = None
    where: Mapping[str, Any] | None = None
    trigger: bool = False
    """Whether this input's update made the task."""
    follows: bool = True
    """Whether its updates make tasks at all; else it is only read."""
    shares_files: bool = False
    """Whether some of its files are in folders of other generations of the dataset."""


class OutputRef(Message, frozen=True):
    output_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    storage_location: str
    name: str | None = None
    """The published one."""


class ScopeRef(Message, frozen=True):
    """Which part of the trigger's dataset this task is for; all empty: all of it."""

    cursor: Number | None = None
    partition_key: ShortText | None = None
    start: Number | None = None
    end: Number | None = None


class BootstrapRef(Message, frozen=True):
    """What a source does first, once per version of its DAG."""

    reset_outputs: bool = False
    """Empty the outputs before writing, and begin at the beginning, without state. It is set until the first events,
    state or outputs are accepted."""


class UdfRef(Message, frozen=True):
    """The code that the task runs: an archive by its content, and where it can be fetched for a short while."""

    bundle: str
    sha256: str
    kind: Literal["python", "node", "bootstrap"]
    handler: str
    size_bytes: int
    url: str
    """Of this one object, for some minutes."""


class AlertRef(Message, frozen=True):
    """An alert's definition when the task begins."""

    alert_definition_id: UUID
    name: str
    severity: str
    params: Mapping[str, Any] = {}
    channels: list[str] = []
    """Their names, for a task that routes; never their addresses."""


class FireRef(Message, frozen=True, omit_defaults=True):
    """What fired a source: a slot of its schedule, a delivery to its webhook, or a user."""

    kind: Literal["cron", "webhook", "manual"]
    slot: datetime | None = None
    """The nominal time of the slot, in UTC, however late it is."""
    delivery_id: UUID | None = None
    body: Any = None
    """The JSON that came with it: of a webhook, or what a user gave."""


class TaskPayload(Message, frozen=True):
    task_id: UUID
    attempt: AttemptNumber
    job: JobRef
    operator: str
    config: Mapping[str, Any]
    inputs: list[InputRef]
    outputs: list[OutputRef] = []
    scope: ScopeRef = ScopeRef()
    state: Mapping[str, Any] | None = None
    heartbeat_seconds: int = 30
    timeout_seconds: int | None = None
    invalidation_id: UUID | None = None
    bootstrap: BootstrapRef | None = None
    udf: UdfRef | None = None
    alerts: list[AlertRef] = []
    secrets: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Their names, never their values, for code that is trusted. Unset where there are none: an older worker does not
    know the field."""
    fired: FireRef | msgspec.UnsetType = msgspec.UNSET
    """Of a task of a source that was fired: by what. Unset for any other task."""
    flush: bool | msgspec.UnsetType = msgspec.UNSET
    """The operator is to send what it has collected: everything that it reads is paused. Unset for any other task."""


class Invocation(TaskPayload, frozen=True, kw_only=True):
    """What a function is invoked with: all that it needs to run, to report and to be fenced (S4)."""

    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    bundle_url: str | None = None
    """The same as `udf.url`. A runner keeps it to itself."""
    completes: Literal["function", "wrapper"] = "function"
    """Who keeps the lease and reports the end: the function itself, or a wrapper that takes what it returns."""


class FetchAnswer(TaskPayload, frozen=True, kw_only=True):
    """A task's current state: what a claim returns, without lease and capability."""

    status: TaskStatus


class Claimed(Message, frozen=True, tag_field="status", tag="Claimed"):
    attempt: AttemptNumber
    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    task: TaskPayload
    secret_values: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET
    """Secrets that the organisation has stored, of those that `task.secrets` names, by name in lower case. None: no key
    of the Dispatcher decrypts it. Unset where there are none."""

    def __repr__(self) -> str:
        return f"Claimed({self.task!r}, attempt={self.attempt})"


class NotClaimed(Message, frozen=True, tag_field="status", tag="NotClaimed"):
    reason: Literal["AlreadyRunning", "Completed", "Canceled", "NotFound"]


class ClaimBatchAnswer(Message, frozen=True):
    answers: list[Claimed | NotClaimed]


class TaskProgress(Message, frozen=True, omit_defaults=True):
    """The progress of a task, for people."""

    done: Number | None = None
    total: Number | None = None
    message: ShortText | None = None


class HeartbeatRequest(Fenced, frozen=True):
    progress: TaskProgress | None = None
    """None: unchanged."""


class HeartbeatAnswer(Message, frozen=True):
    lease_expires_at: datetime
    capability_token: str | None = None
    """A fresh one, when the old one is past half its life."""
    canceled: bool = False
    paused: bool = False


class LogLine(Message, frozen=True):
    at: datetime
    text: Annotated[str, msgspec.Meta(max_length=8_000)]
    level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "text", redact_tokens(self.text))


class LogsRequest(Fenced, frozen=True):
    """Log lines of a task, for people (`trace task logs`)."""

    lines: Annotated[list[LogLine], msgspec.Meta(max_length=1_000)]
    first: Number
    """How many lines came before these: lines that are sent again are kept once."""


class LogsAnswer(Message, frozen=True):
    kept: int
    full: bool = False
    """The attempt has no room left: further lines are counted, not kept."""


class WorkerLoadAnswer(Message, frozen=True):
    """What the tasks of a runtime need (`domain/flow/workers.py`)."""

    queued: int
    leased: int
    sources: int
    next_retry_seconds: float | None
    keep_warm_seconds: float | None


class DrainAnswer(Message, frozen=True):
    stopping: int
    """How many sources were asked to stop."""


STOPS_SECONDS: Final = 20.0
"""How long a worker waits in one call: shorter than a proxy keeps a silent connection."""


STOPS_MARK: Final = "^[0-9a-f]{8}-[0-9]{1,18}$"
"""The process that gave it, and what it had counted until then."""


class StopsAnswer(Message, frozen=True):
    """To a worker that waits for its tasks to be ended or held."""

    mark: str
    """Where the next call continues."""
    changed: bool
    """Some tasks were: their next heartbeat returns it."""


class Wakeup(Message, frozen=True):
    task_id: UUID
