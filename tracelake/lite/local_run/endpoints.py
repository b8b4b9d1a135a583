"""Stand-ins of the doors that a function reaches, on loopback: they read the same messages, and send nothing on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from tracelake.domain.ids import DatasetId
from tracelake.errors import Forbidden, InvalidRequest, NotFound, TraceError, Unauthenticated
from tracelake.lite.local_run.rows import Snapshot
from tracelake.runtime.listeners import refusal_response
from tracelake.wire.buffer_messages import BufferPublishAnswer, BufferPublishRequest
from tracelake.wire.identity_messages import MountedStorage
from tracelake.wire.message import CAPABILITY_HEADER, Message, decode
from tracelake.wire.output_messages import CompleteAnswer, CompleteRequest, EventsAnswer, EventsRequest
from tracelake.wire.query_messages import TaskQueryRequest
from tracelake.wire.task_messages import HeartbeatAnswer, HeartbeatRequest, Invocation, LogsAnswer, LogsRequest

MOST_BYTES: Final = 16 * 1024 * 1024
RUNTIME: Final = "/2018-06-01/runtime/invocation/"


@dataclass
class RecordedCalls:
    """What a function said to the listeners."""

    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By dataset: its rows."""
    events: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] | None = None
    completion: CompleteRequest | None = None
    result: Any = None
    """What a bootstrap answered through the Runtime API."""
    over: threading.Event = field(default_factory=threading.Event)
    """It has answered, and waits for another invocation."""


class StandIns(ThreadingHTTPServer):
    """The task door, the Query service's, the object door and the Runtime API of one invocation."""

    daemon_threads = True

    def __init__(self, invocation: Invocation, snapshot: Snapshot) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.invocation = invocation
        self.snapshot = snapshot
        self.heard = RecordedCalls()
        self.objects = dict[str, bytes]()
        self.published = set[str]()
        self.invoked = False
        self.token = invocation.capability_token
        """The one that holds."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, body: bytes, token: str | None) -> Any:
        if path.startswith(RUNTIME):
            return self._runtime(method, path, body)
        if token != self.token:
            raise Unauthenticated("this door asks for the task's capability", where=f"header {CAPABILITY_HEADER}")
        if method == "PUT":
            return self._put(path, body)
        verb = VERBS.get(path) if method == "POST" else None
        if verb is None:
            raise NotFound(f"there is no {method} {path} at this door", where=path)
        kind, act = verb
        asked = decode(body, kind)
        task = self.invocation
        if (asked.task_id, asked.attempt) != (task.task_id, task.attempt):  # type: ignore[attr-defined]
            raise Forbidden("the token is another task's", where="/task_id")
        return act(self, asked)

    def _put(self, path: str, body: bytes) -> Any:
        if len(body) > MOST_BYTES:
            raise InvalidRequest(f"the body is larger than {MOST_BYTES} bytes", where="")
        self.objects[f"s3:/{path}"] = body
        return {"name": f"s3:/{path}", "size": len(body)}

    def _runtime(self, method: str, path: str, body: bytes) -> Any:
        if path == f"{RUNTIME}next" and method == "GET":
            if self.invoked:  # there is never a second one
                self.heard.over.set()
                threading.Event().wait()
            self.invoked = True
            return msgspec.to_builtins(self.invocation)
        with suppress(ValueError):
            self.heard.result = json.loads(body or b"null")
        self.heard.over.set()
        return {"status": "OK"}

    def heartbeat(self, asked: HeartbeatRequest) -> HeartbeatAnswer:
        self.heard.progress = _plain(asked.progress) or self.heard.progress
        return HeartbeatAnswer(lease_expires_at=datetime.now(UTC) + timedelta(minutes=5))

    def complete(self, asked: CompleteRequest) -> CompleteAnswer:
        self.heard.completion = asked
        self.heard.progress = _plain(asked.progress) or self.heard.progress
        self.heard.events += [self._event(event) for event in asked.events]
        return CompleteAnswer(status=asked.status)

    def events(self, asked: EventsRequest) -> EventsAnswer:
        self.heard.events += [self._event(event) for event in asked.events]
        return EventsAnswer(accepted=len(asked.events))

    def publish(self, asked: BufferPublishRequest) -> BufferPublishAnswer:
        body = self.objects.get(asked.batch_uri)
        if body is None:
            raise NotFound("nothing lies there", where="/batch_uri")
        rows = [json.loads(line) for line in body.splitlines()]
        if asked.record_count not in (None, len(rows)):
            raise InvalidRequest(f"the batch has {len(rows)} rows", where="/record_count")
        if asked.batch_uri not in self.published:
            self.published.add(asked.batch_uri)
            name = self._name(asked.dataset_uuid) if asked.dataset_uuid else asked.dedupe_scope or "?"
            self.heard.batches.setdefault(name, []).extend(rows)
        return BufferPublishAnswer(publish_id=self.invocation.task_id)

    def _event(self, event: Any) -> dict[str, Any]:
        told = {k: v for k, v in msgspec.to_builtins(event).items() if v is not None}
        told.pop("dataset_version", None)
        return {"output": self._name(event.dataset_uuid), **{k: v for k, v in told.items() if k != "dataset_uuid"}}

    def _name(self, dataset: DatasetId | Any) -> str:
        return next((o.name or str(o.output_index) for o in self.invocation.outputs if o.dataset_uuid == dataset), "?")


Verb = tuple[type[Message], Callable[[StandIns, Any], Any]]
VERBS: Mapping[str, Verb] = {
    "/v1/task/heartbeat": (HeartbeatRequest, lambda listener, asked: listener.heartbeat(asked)),
    "/v1/task/complete": (CompleteRequest, StandIns.complete),
    "/v1/task/events": (EventsRequest, StandIns.events),
    "/v1/task/buffer-publish": (BufferPublishRequest, StandIns.publish),
    "/v1/task/query": (TaskQueryRequest, lambda listener, asked: listener.snapshot.ask(asked)),
    "/v1/task/logs": (LogsRequest, lambda _, asked: LogsAnswer(kept=len(asked.lines))),
    "/v1/task/credentials": (HeartbeatRequest, lambda *_: MountedStorage(read=[], write=[])),
}


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024  # head and body in one piece: else the second waits for the first to be acknowledged
    server: StandIns

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            status, said = 200, msgspec.json.encode(self._answer(body))
        except TraceError as refusal:
            refused = refusal_response(refusal)
            status, said = refused.status_code, bytes(refused.body)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        if self.path == f"{RUNTIME}next":
            self.send_header("Lambda-Runtime-Aws-Request-Id", str(self.server.invocation.task_id))
            self.send_header("Lambda-Runtime-Deadline-Ms", "4102444800000")
        self.end_headers()
        self.wfile.write(said)

    def _answer(self, body: bytes) -> Any:
        return self.server.answer(self.command, self.path, body, self.headers.get(CAPABILITY_HEADER))

    do_GET = do_POST = do_PUT = _do  # noqa: N815 - as http.server calls them

    def log_message(self, *_: object) -> None:
        """The rehearsal says what there is to say."""
