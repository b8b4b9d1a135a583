"""The shapes on the wire, the same for who sends and who receives. Unknown fields are refused, everywhere.

Exactly those of the specification, with what it leaves open: `task` in a claim also says what the task writes, reads
and how often it must be heard; a heartbeat's answer carries what a worker must know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID, uuid5

import msgspec

from tracelake.domain.redaction import redact_tokens
from tracelake.errors import InvalidRequest

MAX_BODY_BYTES = 1024 * 1024
MAX_EVENTS = 10_000
MAX_CLAIMS = 100
MAX_COMPLETION_BYTES = 16 * 1024 * 1024
"""A completion by itself, whose token holds: as many partitions as it may tell events of, each with its file."""
MAX_BATCHES = 1_000

# What the database can hold: a number or text beyond it is the sender's mistake, not ours.
Attempt = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)]
ErrorCode = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
LongText = Annotated[str, msgspec.Meta(max_length=20_000)]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every body: immutable, and closed to fields it does not know."""


class Fenced(Message, frozen=True, kw_only=True):
    """What every task-scoped call carries: it counts only for the current attempt and lease."""

    task_id: UUID
    attempt: Attempt
    lease_token: UUID


class ClaimRequest(Message, frozen=True):
    task_id: UUID
    worker_id: Text
    claim_id: UUID | None = None
    """Chosen by the worker, the same whenever it asks again: a claim whose answer was lost is then answered, and not
    taken for somebody else's."""


class ClaimBatchRequest(Message, frozen=True):
    """Several claims of one worker, answered together and in their order."""

    task_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=MAX_CLAIMS)]
    worker_id: Text
    claim_id: UUID | None = None

    def one_by_one(self) -> list[ClaimRequest]:
        """Each place in the list is a question of its own: a task that is named twice is given once, also when the
        whole list is asked again.
        """
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
    partition_key: Text | None = None
    start: Number | None = None
    end: Number | None = None


class BootstrapRef(Message, frozen=True):
    """What a source does first, once per version of its DAG."""

    reset_outputs: bool = False
    """Empty the outputs before writing, and begin at the beginning: no state is handed out with it. It is asked for
    until the first events, state or outputs are accepted: these say that it was done."""


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
    """An alert's definition as it stands when the task begins."""

    alert_definition_id: UUID
    name: str
    severity: str
    params: Mapping[str, Any] = {}
    channels: list[str] = []
    """Their names, for a task that routes; never where they lead."""


class TaskPayload(Message, frozen=True):
    task_id: UUID
    attempt: Attempt
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
    """Their names, never their values, for code that is trusted. Not said where there are none: a worker from before
    there were any knows no such field."""


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
    """A task as it stands: what a claim is answered with, without lease and capability."""

    status: Literal["Queued", "Running", "Completed", "Failed", "Canceled"]


class Claimed(Message, frozen=True, tag_field="status", tag="Claimed"):
    attempt: Attempt
    lease_token: UUID
    lease_expires_at: datetime
    capability_token: str
    task: TaskPayload


class NotClaimed(Message, frozen=True, tag_field="status", tag="NotClaimed"):
    reason: Literal["AlreadyRunning", "Completed", "Canceled", "NotFound"]


class ClaimBatchAnswer(Message, frozen=True):
    answers: list[Claimed | NotClaimed]


class Progress(Message, frozen=True, omit_defaults=True):
    """How far a task has come, for people."""

    done: Number | None = None
    total: Number | None = None
    message: Text | None = None


class HeartbeatRequest(Fenced, frozen=True):
    progress: Progress | None = None
    """None: what was said last still holds."""


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
    """What a task says while it runs, for people (`trace task logs`)."""

    lines: Annotated[list[LogLine], msgspec.Meta(max_length=1_000)]
    first: Number
    """How many lines came before these: said again, they are kept once."""


class LogsAnswer(Message, frozen=True):
    kept: int
    full: bool = False
    """An attempt's room is used up: what follows is counted, not kept."""


class EventBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: Number | None = None
    partition_key: Text | None = None
    start: Number | None = None
    end: Number | None = None


class InvalidationBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    start: Number
    end: Number
    reason: Text
    cause: Text | None = None
    """What it follows from, such as the hash of the block that took over. A task that runs long must say it: its next
    reorg of the same range is another one only by its cause."""


class EventsRequest(Fenced, frozen=True):
    events: Annotated[list[EventBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    invalidations: Annotated[list[InvalidationBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    state: Mapping[str, Any] | None = None
    """Durable operator state, saved with them or not at all: a source that is lost goes on from here."""


class EventsAnswer(Message, frozen=True):
    accepted: int
    """How many of them were new."""


class FilesRequest(Fenced, frozen=True):
    """Which files hold a dataset that the task reads, as of its pinned commit, or one that it writes, as of now."""

    dataset_uuid: UUID
    start: Number | None = None
    end: Number | None = None
    """Only partitions that touch this range; both or neither."""


class PartitionFiles(Message, frozen=True):
    partition_key: str
    location: str
    files: list[Mapping[str, Any]]
    commit: int
    start: int | None = None
    end: int | None = None
    row_count: int | None = None


class FilesAnswer(Message, frozen=True):
    dataset_version: UUID
    commit: int
    columns: list[Mapping[str, Any]] | None = None
    """Name and type of each; None before the first commit."""
    partitions: list[PartitionFiles] = []


class OutputBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    output_index: Number | None = None
    location: Text | None = None
    cursor: Number | None = None
    partition_key: Text | None = None
    start: Number | None = None
    end: Number | None = None
    row_count: Number | None = None
    bytes: Number | None = None
    schema_hash: Text | None = None
    files: list[Mapping[str, Any]] = []
    over: Number | None = None
    """The dataset's last commit when what this replaces was read: refused if any of that was committed later."""


class CredentialsRequest(Fenced, frozen=True):
    """Keys for the object store, for what the token lets the task read and write."""


class SessionCredentials(Message, frozen=True, tag_field="kind", tag="session"):
    """Keys of a session at an S3 store."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime
    """Never later than the token's end: ask again with the fresh one that a heartbeat brings."""
    region: str
    read: list[str]
    """Folders, written `s3://bucket/folder/`."""
    write: list[str]
    endpoint: str | None = None
    """Unset: AWS."""


class MountedStorage(Message, frozen=True, tag_field="kind", tag="mounts"):
    """The store is a disk and has no keys: these folders, and no others, are mounted where the task runs."""

    read: list[str]
    write: list[str]


CredentialsAnswer = SessionCredentials | MountedStorage


class StorageRef(Message, frozen=True):
    scheme: Literal["s3"]
    bucket: Text
    prefix: Text
    glob: Text = "*.parquet"


class PublishedBody(Message, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: StorageRef
    config_hash: Text | None = None
    range_start: Number | None = None
    range_end: Number | None = None


class CompleteRequest(Fenced, frozen=True):
    status: Literal["Completed", "Failed", "Canceled"]
    events: Annotated[list[EventBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    invalidations: Annotated[list[InvalidationBody], msgspec.Meta(max_length=MAX_EVENTS)] = []
    outputs: list[OutputBody] = []
    datasets_published: list[PublishedBody] = []
    state: Mapping[str, Any] | None = None
    """Durable operator state, saved with the completion."""
    error_message: LongText | None = None
    retryable: bool = True
    error_code: ErrorCode | msgspec.UnsetType = msgspec.UNSET
    """Of a failure: the code of the error that ended it. Where that is the platform's (`busy`, `unavailable`, ...), the
    attempt does not count against the job's `max_attempts`."""
    progress: Progress | None = None
    """The last word about it; None: what was said last still holds."""

    def __post_init__(self) -> None:
        if self.error_message:
            msgspec.structs.force_setattr(self, "error_message", redact_tokens(self.error_message))


class CompleteAnswer(Message, frozen=True):
    status: Literal["Completed", "Failed", "Canceled"]
    next_retry_at: datetime | None = None
    commits: dict[UUID, int] | None = None
    """By dataset, which commit its outputs became; those that were old news are not there."""


class CompleteItem(Message, frozen=True):
    """One of several completions, with the token that it would carry in a header by itself."""

    capability_token: str
    completion: CompleteRequest


class CompleteBatchRequest(Message, frozen=True):
    """Completions of several tasks that ended together, each judged by itself, answered in their order."""

    items: Annotated[list[CompleteItem], msgspec.Meta(min_length=1, max_length=MAX_CLAIMS)]


class CompleteOutcome(Message, frozen=True):
    """What the completion would have been answered by itself: an answer, or an error."""

    answer: CompleteAnswer | None = None
    error: Mapping[str, Any] | None = None


class CompleteBatchAnswer(Message, frozen=True):
    outcomes: list[CompleteOutcome]


class BufferPublishRequest(Fenced, frozen=True):
    """Both revisions of the contract in one (S2)."""

    batch_uri: Text
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None
    record_count: Number | None = None
    content_type: Text = "application/jsonl"
    batch_size_bytes: Number | None = None
    dedupe_scope: Text | None = None


class BufferPublishAnswer(Message, frozen=True):
    publish_id: UUID


class BufferRecord(Message, frozen=True):
    """What the sink believes about a batch. A queue's message only says which publish it is about."""

    publish_id: UUID
    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: Attempt
    batch_uri: str
    folder: str
    """Where this very attempt's batches lie: nothing outside of it is read for it."""
    content_type: str
    status: Literal["Accepted", "Committed", "Dead"]
    created_at: datetime
    record_count: int | None = None
    batch_size_bytes: int | None = None


class BufferTable(Message, frozen=True):
    """A buffered dataset as its table is to be."""

    dataset_uuid: UUID
    dataset_version: UUID
    org_id: UUID
    name: str
    declaration: Mapping[str, Any]


class BufferRequest(Message, frozen=True):
    publish_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCHES)] = []
    datasets: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCHES)] = []
    """Also those whose table is asked for without a batch."""


class BufferAnswer(Message, frozen=True):
    records: list[BufferRecord]
    """Those that there are."""
    tables: list[BufferTable]
    """Of their datasets and of those asked for, as far as they are declared."""


class CommittedBatch(Message, frozen=True):
    publish_id: UUID
    seq: Number
    rows: Number
    bytes: Number


class DeadBatch(Message, frozen=True):
    publish_id: UUID
    reason: LongText
    line: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None


class SettleRequest(Message, frozen=True):
    """What has become of batches; said again, it changes nothing."""

    committed: Annotated[list[CommittedBatch], msgspec.Meta(max_length=MAX_BATCHES)] = []
    dead: Annotated[list[DeadBatch], msgspec.Meta(max_length=MAX_BATCHES)] = []


class SettleAnswer(Message, frozen=True):
    settled: int
    """How many were new."""


class UserAnswer(msgspec.Struct, frozen=True):
    id: UUID
    org_id: UUID
    org_slug: str
    email: str | None
    role: str


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """The public half of a key, as RFC 7517 has it."""

    kid: str
    kty: str
    crv: str
    x: str
    y: str
    alg: str | None = None
    use: str | None = None


class KeySet(msgspec.Struct, frozen=True):
    keys: list[Key]


class DrainAnswer(Message, frozen=True):
    told: int
    """How many sources were told to stop."""


STOPS_SECONDS: Final = 20.0
"""How long a worker waits for news in one call: shorter than what stands between keeps a silent connection."""


STOPS_MARK: Final = "^[0-9a-f]{8}-[0-9]{1,18}$"
"""The process that gave it, and what it had counted until then."""


class StopsAnswer(Message, frozen=True):
    """To a worker that waits for its tasks to be ended or held."""

    mark: str
    """Where the next question goes on."""
    news: bool
    """Some tasks were: heartbeats tell whose."""


class Wakeup(Message, frozen=True):
    task_id: UUID


B = TypeVar("B", bound=Message)


def decode(body: bytes, kind: type[B], most: int = MAX_BODY_BYTES) -> B:
    """The body as its type, or InvalidRequest with the JSON pointer of what is wrong."""
    if len(body) > most:
        raise InvalidRequest(f"the body has {len(body)} bytes; at most {most} are taken", where="")
    if b"\\u0000" in body:
        raise InvalidRequest("the body holds a NUL character, which cannot be stored", where="")
    try:
        decoded = msgspec.json.decode(body, type=kind)
        _EACH_KEY_ONCE.decode(body.decode())
    except msgspec.ValidationError as wrong:
        said, _, path = str(wrong).partition(" - at `")
        unknown = re.search(r"unknown field `(.*)`", said)
        raise InvalidRequest(said, where=pointer(path.rstrip("`")) + (f"/{unknown[1]}" if unknown else "")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise InvalidRequest(f"the body is not JSON: {wrong}", where="") from None
    return decoded


def _refuse_repeated_key(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise InvalidRequest(f"the key {twice[:80]!r} is there twice in one object", where="", hint="send it once")


_EACH_KEY_ONCE: Final = json.JSONDecoder(object_pairs_hook=_refuse_repeated_key)
"""Two readers may keep different ones of two equal keys; msgspec keeps the last."""


def pointer(path: str) -> str:
    """`$.events[0].cursor` as `/events/0/cursor`."""
    parts = re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path)
    return "".join(f"/{name or index}" for name, index in parts)
