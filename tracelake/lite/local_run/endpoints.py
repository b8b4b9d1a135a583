"""Local stand-ins for the listeners that a function reaches. They check the same messages and record the calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from aiohttp import web

from tracelake.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated
from tracelake.lite.local_run.rows import LocalDatasets
from tracelake.runtime.read_body import read_bounded
from tracelake.udf.runtime_api import BASE, RuntimeApi
from tracelake.udf.sandbox_listener import json_response, not_found
from tracelake.wire.internal.identity import MountedStorage
from tracelake.wire.internal.queries import TaskQueryRequest
from tracelake.wire.message import CAPABILITY_HEADER, Message, decode
from tracelake.wire.task.buffers import BufferPublishAnswer, BufferPublishRequest
from tracelake.wire.task.lifecycle import HeartbeatAnswer, HeartbeatRequest, Invocation, LogsAnswer, LogsRequest
from tracelake.wire.task.outputs import CompleteAnswer, CompleteRequest, EventsAnswer, EventsRequest

MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass
class RecordedCalls:
    """The calls that a function made."""

    batches: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Published rows by dataset."""
    events: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] | None = None
    completion: CompleteRequest | None = None


class LocalEndpoints:
    """Task API, query service, object store and Runtime API for one invocation."""

    def __init__(self, invocation: Invocation, snapshot: LocalDatasets) -> None:
        self.runtime = RuntimeApi(MOST_BYTES)
        self.invocation = invocation
        self.snapshot = snapshot
        self.calls = RecordedCalls()
        self.objects = dict[str, bytes]()
        self.published = set[str]()
        self.token = invocation.capability_token
        """The capability that is accepted now."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path.startswith(BASE):
            return await self.runtime.handle(request)
        if request.headers.get(CAPABILITY_HEADER) != self.token:
            raise Unauthenticated("the task's capability is required", where=f"header {CAPABILITY_HEADER}")
        body = await read_bounded(request.content.iter_any(), MOST_BYTES)
        if request.method == "PUT":
            return self._put(request.path, body)
        verb = VERBS.get(request.path) if request.method == "POST" else None
        if verb is None:
            raise not_found(request)
        kind, act = verb
        message = decode(body, kind)
        if (message.task_id, message.attempt) != (self.invocation.task_id, self.invocation.attempt):  # type: ignore[attr-defined]
            raise Forbidden("the token belongs to another task", where="/task_id")
        return json_response(await asyncio.to_thread(act, self, message))

    def _put(self, path: str, body: bytes) -> web.Response:
        self.objects[f"s3:/{path}"] = body
        return json_response({"name": f"s3:/{path}", "size": len(body)})

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        self.calls.progress = _plain(request.progress) or self.calls.progress
        return HeartbeatAnswer(lease_expires_at=datetime.now(UTC) + timedelta(minutes=5))

    def complete(self, request: CompleteRequest) -> CompleteAnswer:
        self.calls.completion = request
        self.calls.progress = _plain(request.progress) or self.calls.progress
        self.calls.events += [self._event(event) for event in request.events]
        return CompleteAnswer(status=request.status)

    def events(self, request: EventsRequest) -> EventsAnswer:
        self.calls.events += [self._event(event) for event in request.events]
        return EventsAnswer(accepted=len(request.events))

    def publish(self, request: BufferPublishRequest) -> BufferPublishAnswer:
        body = self.objects.get(request.batch_uri)
        if body is None:
            raise NotFound("no such object", where="/batch_uri")
        rows = [json.loads(line) for line in body.splitlines()]
        if request.record_count not in (None, len(rows)):
            raise InvalidRequest(f"the batch has {len(rows)} rows", where="/record_count")
        if request.batch_uri not in self.published:
            self.published.add(request.batch_uri)
            name = self._name(request.dataset_uuid) if request.dataset_uuid else request.dedupe_scope or "?"
            self.calls.batches.setdefault(name, []).extend(rows)
        return BufferPublishAnswer(publish_id=self.invocation.task_id)

    def _event(self, event: Any) -> dict[str, Any]:
        fields = msgspec.to_builtins(event).items()
        shown = {k: v for k, v in fields if v is not None and k not in {"dataset_uuid", "dataset_version"}}
        return {"output": self._name(event.dataset_uuid), **shown}

    def _name(self, dataset: Any) -> str:
        return next((o.name or str(o.output_index) for o in self.invocation.outputs if o.dataset_uuid == dataset), "?")


Verb = tuple[type[Message], Callable[[LocalEndpoints, Any], Any]]
VERBS: Mapping[str, Verb] = {
    "/v1/task/heartbeat": (HeartbeatRequest, lambda endpoints, request: endpoints.heartbeat(request)),
    "/v1/task/complete": (CompleteRequest, LocalEndpoints.complete),
    "/v1/task/events": (EventsRequest, LocalEndpoints.events),
    "/v1/task/buffer-publish": (BufferPublishRequest, LocalEndpoints.publish),
    "/v1/task/query": (TaskQueryRequest, lambda endpoints, request: endpoints.snapshot.query(request)),
    "/v1/task/logs": (LogsRequest, lambda _, request: LogsAnswer(kept=len(request.lines))),
    "/v1/task/credentials": (HeartbeatRequest, lambda *_: MountedStorage(read=[], write=[])),
}


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value)
