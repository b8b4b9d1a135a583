"""Both APIs of the Dispatcher as OpenAPI, made from the types that decode their bodies: for clients, and for fuzzing.

Served by the internal API alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from tracelake.wire.calls.user_calls import CALLS, USER
from tracelake.wire.internal.changes import ChangesAnswer
from tracelake.wire.internal.comparisons import ComparisonHeld, ComparisonReport, ComparisonTaken
from tracelake.wire.internal.identity import (
    CredentialsAnswer,
    CredentialsRequest,
    KeySet,
    ServiceTokenAnswer,
    ServiceTokenCheck,
    UserAnswer,
    UserLoginAnswer,
    UserLoginRequest,
    UserTokenAnswer,
    UserTokenRequest,
)
from tracelake.wire.internal.queries import AuditAnswer, AuditRequest, RelationsAnswer, RelationsRequest
from tracelake.wire.internal.refusals import RefusalsRequest, RefusalsStored
from tracelake.wire.internal.rpc_shares import RpcSharesAnswer, RpcSharesRequest
from tracelake.wire.internal.sources import FiredAnswer, HookBatchAnswer, HookBatchRequest
from tracelake.wire.message import Message
from tracelake.wire.openapi import INTERNAL_SECURITY, answers, as_json, operation, query_parameters, schemas
from tracelake.wire.record_call import AuditBeginRequest, AuditBegun, AuditEnded, AuditEndRequest
from tracelake.wire.task.buffers import (
    BufferAnswer,
    BufferPublishAnswer,
    BufferPublishRequest,
    BufferRequest,
    SettleAnswer,
    SettleRequest,
)
from tracelake.wire.task.lifecycle import (
    STOPS_MARK,
    ClaimBatchAnswer,
    ClaimBatchRequest,
    Claimed,
    ClaimRequest,
    DrainAnswer,
    FetchAnswer,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogsAnswer,
    LogsRequest,
    NotClaimed,
    StopsAnswer,
    WorkerLoadAnswer,
)
from tracelake.wire.task.outputs import (
    CompleteAnswer,
    CompleteBatchAnswer,
    CompleteBatchRequest,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
    FilesAnswer,
    FilesRequest,
)
from tracelake.wire.user.alerts import FailuresAnswer, FailuresRequest, TargetsAnswer, TargetsRequest

TEXT = {"type": "string"}
Identity = Literal["service", "task"]
RESPONSES = {
    "400": "The request is invalid; `where` names the part",
    "401": "No token, or an invalid one",
    "403": "A valid token that does not allow this",
    "404": "There is no such object",
    "409": "The attempt is no longer the current one, or the request contradicts the stored state",
    "503": "The database or another component is unavailable; a retry may help",
}


class FetchQuery(Message, frozen=True):
    task_id: UUID


class WorkerLoadQuery(Message, frozen=True):
    runtime: str


class StopsQuery(Message, frozen=True):
    after: Annotated[str, msgspec.Meta(pattern=f"^$|{STOPS_MARK}")] = ""
    """The mark of the last answer."""


class BundleQuery(Message, frozen=True):
    org: UUID
    expires: int
    signature: str


class UserQuery(Message, frozen=True):
    external_id: str


@dataclass(frozen=True)
class DescribedRoute:
    """One route as it is described."""

    method: Literal["get", "post"]
    path: str
    summary: str
    answer: Any
    identity: Identity | None
    body: type[Message] | None = None
    query: type[Message] | None = None


ROUTES = (
    DescribedRoute("post", "/v1/task/heartbeat", "Extend the lease", HeartbeatAnswer, "task", HeartbeatRequest),
    DescribedRoute("post", "/v1/task/complete", "End the attempt and commit", CompleteAnswer, "task", CompleteRequest),
    DescribedRoute(
        "post", "/v1/task/complete-batch", "End several attempts", CompleteBatchAnswer, None, CompleteBatchRequest
    ),
    DescribedRoute("post", "/v1/task/events", "Tell on the way", EventsAnswer, "task", EventsRequest),
    DescribedRoute("post", "/v1/task/logs", "Say something to people", LogsAnswer, "task", LogsRequest),
    DescribedRoute("post", "/v1/task/files", "Find the files of a dataset", FilesAnswer, "task", FilesRequest),
    DescribedRoute(
        "post", "/v1/task/credentials", "Keys for the object store", CredentialsAnswer, "task", CredentialsRequest
    ),
    DescribedRoute(
        "post", "/v1/task/buffer-publish", "Send a batch", BufferPublishAnswer, "task", BufferPublishRequest
    ),
    DescribedRoute("post", "/internal/task-claim", "Take a task", Claimed | NotClaimed, "service", ClaimRequest),
    DescribedRoute(
        "post", "/internal/task-claim-batch", "Take several", ClaimBatchAnswer, "service", ClaimBatchRequest
    ),
    DescribedRoute("get", "/internal/task-fetch", "Look at a task", FetchAnswer, "service", query=FetchQuery),
    DescribedRoute(
        "get", "/internal/task-stops", "Wait for tasks to be ended", StopsAnswer, "service", query=StopsQuery
    ),
    DescribedRoute(
        "get",
        "/internal/worker-load",
        "What a runtime's tasks need",
        WorkerLoadAnswer,
        "service",
        query=WorkerLoadQuery,
    ),
    DescribedRoute(
        "post", "/internal/rpc-shares", "Lease shares of pools of nodes", RpcSharesAnswer, "service", RpcSharesRequest
    ),
    DescribedRoute(
        "post", "/internal/user-token", "Find a personal access token", UserTokenAnswer, "service", UserTokenRequest
    ),
    DescribedRoute(
        "post", "/internal/user-login", "A user's token, who may be new", UserLoginAnswer, "service", UserLoginRequest
    ),
    DescribedRoute(
        "post", "/internal/refusals", "Identities that a Gateway refused", RefusalsStored, "service", RefusalsRequest
    ),
    DescribedRoute(
        "post",
        "/internal/service-token",
        "Whose a service's token is",
        ServiceTokenAnswer,
        "service",
        ServiceTokenCheck,
    ),
    DescribedRoute("get", "/internal/user", "A user by subject", UserAnswer, "service", query=UserQuery),
    DescribedRoute("post", "/internal/sources/drain", "The system goes down", DrainAnswer, "service"),
    DescribedRoute(
        "post", "/internal/buffer/records", "What the sink may believe", BufferAnswer, "service", BufferRequest
    ),
    DescribedRoute("post", "/internal/buffer/settle", "What became of batches", SettleAnswer, "service", SettleRequest),
    DescribedRoute("post", "/internal/alerts/targets", "Where alerts go", TargetsAnswer, "service", TargetsRequest),
    DescribedRoute(
        "post",
        "/internal/alerts/failures",
        "Alerts about tasks that have failed for good",
        FailuresAnswer,
        "service",
        FailuresRequest,
    ),
    DescribedRoute(
        "post", "/internal/query/relations", "What a question reads", RelationsAnswer, "service", RelationsRequest
    ),
    DescribedRoute(
        "post", "/internal/query/comparisons/take", "A dataset of a release to compare now", ComparisonTaken, "service"
    ),
    DescribedRoute(
        "post",
        "/internal/query/comparisons/report",
        "Progress or outcome of a comparison",
        ComparisonHeld,
        "service",
        ComparisonReport,
    ),
    DescribedRoute(
        "get",
        "/internal/query/comparisons/changes",
        "Wait for comparisons to be requested",
        ChangesAnswer,
        "service",
        query=StopsQuery,
    ),
    DescribedRoute(
        "post",
        "/internal/audit/begin",
        "A call of a user that the caller answers",
        AuditBegun,
        "service",
        AuditBeginRequest,
    ),
    DescribedRoute("post", "/internal/audit/end", "How that call ended", AuditEnded, "service", AuditEndRequest),
    DescribedRoute("post", "/internal/query/audit", "What was asked", AuditAnswer, "service", AuditRequest),
    DescribedRoute("post", "/internal/schedules/fire", "Fire the slots that are due", FiredAnswer, "service"),
    DescribedRoute(
        "get", "/internal/schedules/changes", "Wait for schedules to change", ChangesAnswer, "service", query=StopsQuery
    ),
    DescribedRoute(
        "post", "/internal/hooks", "Calls of webhooks, as they came", HookBatchAnswer, "service", HookBatchRequest
    ),
    DescribedRoute("get", "/v1/udf/bundle/{sha256}", "The zip that a URL opens", bytes, None, query=BundleQuery),
    DescribedRoute("get", "/internal/jwks/task", "Public keys of capabilities", KeySet, None),
)


def document(service: Literal["task", "internal"] | None = None) -> dict[str, Any]:
    """Of one API, or of both."""
    routes = [route for route in ROUTES if service is None or (service == "task") == route.path.startswith("/v1/")]
    calls = [call for call in CALLS.values() if call.service == "dispatcher"] if service != "task" else []
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _route(route)
    for call in calls:
        about = operation(call) | {"summary": call.summary, "security": [{"service": []}]}
        about["parameters"] = [*about["parameters"], _user_header()]
        paths.setdefault(f"/internal/v1{call.path}", {})[call.method.lower()] = about
    kinds = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    kinds += [kind for call in calls for kind in (call.answer, call.body) if kind is not None]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trace Dispatcher", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas(kinds), "securitySchemes": INTERNAL_SECURITY},
    }


def _route(described_route: DescribedRoute) -> dict[str, Any]:
    about: dict[str, Any] = {
        "operationId": re.sub(r"/{\w+}$", "", described_route.path).rpartition("/")[2].replace("-", "_"),
        "summary": described_route.summary,
        "security": [{described_route.identity: []}] if described_route.identity else [],
        "parameters": [
            *map(_in_path, re.findall(r"{(\w+)}", described_route.path)),
            *query_parameters(
                described_route.query, described_route.query.__struct_fields__ if described_route.query else ()
            ),
        ],
        "responses": answers(described_route.answer, RESPONSES),
    }
    if described_route.answer is bytes:
        about["responses"]["200"]["content"] = {"application/zip": {"schema": {**TEXT, "format": "binary"}}}
    if described_route.body is not None:
        about["requestBody"] = {"required": True, "content": as_json(described_route.body)}
    return about


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": TEXT}


def _user_header() -> dict[str, Any]:
    about = "The subject of the verified user, percent-encoded"
    return {"name": USER, "in": "header", "required": True, "description": about, "schema": {"type": "string"}}
