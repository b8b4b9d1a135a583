"""Typed calls to the Dispatcher's listeners, for every process that is not the Dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec

from tracelake.errors import (
    Busy,
    Conflict,
    Forbidden,
    Incompatible,
    InvalidRequest,
    LeaseLost,
    NotFound,
    Refused,
    ServiceUnavailable,
    SettingsError,
    SnapshotTooOld,
    TraceError,
    Unauthenticated,
)
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.logs import spoken_of
from tracelake.runtime.request_middleware import REQUEST_ID
from tracelake.runtime.tls import client_context
from tracelake.runtime.tracing import carried
from tracelake.settings import Settings
from tracelake.wire.alert_messages import (
    FailureAlert,
    FailuresAnswer,
    FailuresRequest,
    Target,
    TargetRequest,
    TargetsAnswer,
    TargetsRequest,
)
from tracelake.wire.batch_completions import LARGE_BYTES, Completions
from tracelake.wire.query_messages import AuditAnswer, AuditRequest, AuditRow, RelationsAnswer, RelationsRequest
from tracelake.wire.task_messages import (
    STOPS_SECONDS,
    BufferAnswer,
    BufferPublishAnswer,
    BufferPublishRequest,
    BufferRequest,
    ClaimBatchAnswer,
    ClaimBatchRequest,
    Claimed,
    ClaimRequest,
    CompleteAnswer,
    CompleteBatchAnswer,
    CompleteBatchRequest,
    CompleteItem,
    CompleteRequest,
    CredentialsAnswer,
    CredentialsRequest,
    DrainAnswer,
    EventsAnswer,
    EventsRequest,
    FilesAnswer,
    FilesRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogsAnswer,
    LogsRequest,
    NotClaimed,
    SettleAnswer,
    SettleRequest,
    StopsAnswer,
    UserAnswer,
)
from tracelake.wire.user_calls import USER

WORKER_TOKEN = "X-Trace-Worker-Token"  # noqa: S105 - a header's name
CAPABILITY_HEADER = "X-Trace-Task-Capability"
CLAIM_ANSWER = msgspec.json.Decoder(Claimed | NotClaimed)
CLAIM_BATCH_ANSWER = msgspec.json.Decoder(ClaimBatchAnswer)
CREDENTIALS_ANSWER: msgspec.json.Decoder[CredentialsAnswer] = msgspec.json.Decoder(CredentialsAnswer)
REFUSALS: dict[str, type[TraceError]] = {
    kind.code: kind
    for kind in (
        InvalidRequest,
        Unauthenticated,
        Forbidden,
        NotFound,
        Conflict,
        Incompatible,
        LeaseLost,
        SnapshotTooOld,
        Busy,
    )
}
"""What a caller branches on; any other refusal is a Refused."""


CONNECTIONS = 100
"""Of one process to a Dispatcher: fewer than the requests that it serves at once, so that others are served too."""
TRY_AGAIN = frozenset({httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS})
"""A listener had no time or no room for the request: nothing is wrong with it."""


class DispatcherClient:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ready(self) -> None:
        """Raise ServiceUnavailable unless the Dispatcher and its database answer."""
        await self._get("/readyz")

    async def user(self, external_id: str) -> UserAnswer:
        answer = await self._get("/internal/user", external_id=external_id)
        return msgspec.json.decode(answer.content, type=UserAnswer)

    async def claim(self, task_id: UUID, worker_id: str) -> Claimed | NotClaimed:
        body = msgspec.json.encode(ClaimRequest(task_id=task_id, worker_id=worker_id))
        answer: Claimed | NotClaimed = CLAIM_ANSWER.decode(
            (await _post(self._http, "/internal/task-claim", body, {})).content
        )
        return answer

    async def relations(self, request: RelationsRequest, user: str | None = None) -> RelationsAnswer:
        """Where the rows of a question lie, for this user, or for the attempt that the request names."""
        headers = {USER: quote(user, safe="")} if user is not None else {}
        answer = await _post(self._http, "/internal/query/relations", msgspec.json.encode(request), headers)
        return msgspec.json.decode(answer.content, type=RelationsAnswer)

    async def audit(self, rows: Sequence[AuditRow]) -> AuditAnswer:
        body = msgspec.json.encode(AuditRequest(rows=list(rows)))
        answer = await _post(self._http, "/internal/query/audit", body, {})
        return msgspec.json.decode(answer.content, type=AuditAnswer)

    async def jwks(self) -> Mapping[str, Any]:
        """The public keys of capability tokens, as they are published."""
        found: Mapping[str, Any] = (await self._get("/internal/jwks/task")).json()
        return found

    async def drain_sources(self) -> int:
        """The system goes down: every source is told to stop. How many were."""
        answer = await _post(self._http, "/internal/sources/drain", b"", {})
        return msgspec.json.decode(answer.content, type=DrainAnswer).told

    async def stops(self, mark: str) -> StopsAnswer:
        """Waits until tasks were ended or held since that mark; after some seconds, or without one, is told no news."""
        answer = await self._get("/internal/task-stops", patience=STOPS_SECONDS + 10 if mark else 5, after=mark)
        return msgspec.json.decode(answer.content, type=StopsAnswer)

    async def claim_batch(
        self, task_ids: Sequence[UUID], worker_id: str, claim_id: UUID | None = None
    ) -> list[Claimed | NotClaimed]:
        """Several claims in one call, answered in their order; with the same `claim_id` again, as before."""
        body = msgspec.json.encode(ClaimBatchRequest(task_ids=list(task_ids), worker_id=worker_id, claim_id=claim_id))
        answer = await _post(self._http, "/internal/task-claim-batch", body, {})
        try:
            return CLAIM_BATCH_ANSWER.decode(answer.content).answers
        except msgspec.DecodeError as wrong:  # of a Dispatcher that is newer, say
            raise Refused(f"the Dispatcher's answer to a claim cannot be read: {wrong}") from None

    async def buffer_records(self, publish_ids: Sequence[UUID], datasets: Sequence[UUID] = ()) -> BufferAnswer:
        """What the sink may believe about these publishes, and the tables of their datasets and of those asked for."""
        body = msgspec.json.encode(BufferRequest(publish_ids=list(publish_ids), datasets=list(datasets)))
        answer = await _post(self._http, "/internal/buffer/records", body, {})
        return msgspec.json.decode(answer.content, type=BufferAnswer)

    async def settle_buffers(self, request: SettleRequest) -> int:
        """What has become of batches; how many had not been told before."""
        answer = await _post(self._http, "/internal/buffer/settle", msgspec.json.encode(request), {})
        return msgspec.json.decode(answer.content, type=SettleAnswer).settled

    async def alert_targets(self, asked: Sequence[TargetRequest]) -> list[Target]:
        """Where alerts go, with the secrets of their channels: for the delivery process."""
        body = msgspec.json.encode(TargetsRequest(targets=list(asked)))
        answer = await _post(self._http, "/internal/alerts/targets", body, {})
        return msgspec.json.decode(answer.content, type=TargetsAnswer).targets

    async def failure_alerts(self, task_ids: Sequence[UUID]) -> list[FailureAlert]:
        """What is to be sent of tasks that have failed for good: for the sink."""
        body = msgspec.json.encode(FailuresRequest(task_ids=list(task_ids)))
        answer = await _post(self._http, "/internal/alerts/failures", body, {})
        return msgspec.json.decode(answer.content, type=FailuresAnswer).alerts

    async def ask(
        self,
        method: str,
        path: str,
        user: str,
        *,
        query: str = "",
        body: bytes | AsyncIterator[bytes] = b"",
        content_type: str | None = None,
        seconds: float = 30.0,
    ) -> httpx.Response:
        """A call of the user API, for a user whose token was verified. A refusal is handed back as it was said."""
        # Percent-encoded, because a subject may be any text and a header may not.
        headers = {USER: quote(user, safe=""), **({"content-type": content_type} if content_type else {}), **carried()}
        if (request_id := spoken_of().get("request")) is not None:
            headers[REQUEST_ID] = str(request_id)  # one name for it at every door
        try:
            return await self._http.request(
                method,
                f"{path}?{query}" if query else path,
                content=body,
                headers=headers,
                timeout=httpx.Timeout(seconds, connect=10, pool=10),
            )
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None

    async def _get(self, path: str, *, patience: float | None = None, **parameters: str) -> httpx.Response:
        timeout = self._http.timeout if patience is None else httpx.Timeout(patience, connect=5)
        try:
            answer = await self._http.get(path, params=parameters, timeout=timeout)
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotFound(_message(answer), where=path)
        if answer.is_error:
            raise ServiceUnavailable(f"the Dispatcher answered {answer.status_code}: {_message(answer)}", where=path)
        return answer


class TaskClient:
    """The calls of a task about itself, with its capability token."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._completions = Completions(self._complete_several)

    async def heartbeat(self, token: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        answer = await _post(self._http, "/v1/task/heartbeat", msgspec.json.encode(request), {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=HeartbeatAnswer)

    async def events(self, token: str, request: EventsRequest) -> EventsAnswer:
        answer = await _post(self._http, "/v1/task/events", msgspec.json.encode(request), {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=EventsAnswer)

    async def files(self, token: str, request: FilesRequest) -> FilesAnswer:
        answer = await _post(self._http, "/v1/task/files", msgspec.json.encode(request), {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=FilesAnswer)

    async def logs(self, token: str, request: LogsRequest) -> LogsAnswer:
        answer = await _post(self._http, "/v1/task/logs", msgspec.json.encode(request), {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=LogsAnswer)

    async def credentials(self, token: str, request: CredentialsRequest) -> CredentialsAnswer:
        body = msgspec.json.encode(request)
        answer = await _post(self._http, "/v1/task/credentials", body, {CAPABILITY_HEADER: token})
        return CREDENTIALS_ANSWER.decode(answer.content)

    async def publish_buffer(self, token: str, request: BufferPublishRequest) -> BufferPublishAnswer:
        body = msgspec.json.encode(request)
        answer = await _post(self._http, "/v1/task/buffer-publish", body, {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=BufferPublishAnswer)

    async def complete(self, token: str, request: CompleteRequest) -> CompleteAnswer:
        """By itself, or with others that end in the same moment."""
        body = msgspec.json.encode(request)
        if len(body) + len(token) >= LARGE_BYTES:
            return await self._complete_one(token, body)
        return await self._completions.report(CompleteItem(capability_token=token, completion=request))

    async def _complete_one(self, token: str, body: bytes) -> CompleteAnswer:
        answer = await _post(self._http, "/v1/task/complete", body, {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=CompleteAnswer)

    async def _complete_several(self, items: Sequence[CompleteItem]) -> Sequence[CompleteAnswer | Exception]:
        if len(items) == 1:
            return [await self._complete_one(items[0].capability_token, msgspec.json.encode(items[0].completion))]
        body = msgspec.json.encode(CompleteBatchRequest(items=list(items)))
        answer = await _post(self._http, "/v1/task/complete-batch", body, {})
        outcomes = msgspec.json.decode(answer.content, type=CompleteBatchAnswer).outcomes
        return [outcome.answer or _said(outcome.error or {}, Refused) for outcome in outcomes]


@asynccontextmanager
async def task_client(settings: Settings) -> AsyncIterator[TaskClient]:
    url = settings.endpoints.dispatcher_task
    if url is None:
        missing = "endpoints.dispatcher_task"
        raise SettingsError(f"{missing} is not set", where=missing, hint="`trace up` fills it in")
    async with AsyncClient(base_url=url, verify=client_context(settings.tls.ca), timeout=30) as http:
        yield TaskClient(http)


@asynccontextmanager
async def dispatcher_client(settings: Settings) -> AsyncIterator[DispatcherClient]:
    url, token = settings.endpoints.dispatcher_internal, settings.identity.worker_token
    if url is None or token is None:
        missing = "endpoints.dispatcher_internal" if url is None else "identity.worker_token"
        raise SettingsError(f"{missing} is not set", where=missing, hint="`trace up` fills it in")
    headers = {WORKER_TOKEN: token.get_secret_value()}
    # Kept open, as many as there may be: a TLS handshake costs more than most calls.
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    verify = client_context(settings.tls.ca)
    async with AsyncClient(base_url=url, headers=headers, verify=verify, timeout=10, limits=limits) as http:
        yield DispatcherClient(http)


async def _post(http: httpx.AsyncClient, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    """The answer, or the refusal that the door said, as the error it is."""
    try:
        answer = await http.post(path, content=body, headers={**headers, **carried()})
    except httpx.HTTPError as away:
        raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
    if answer.is_error:
        raise _refusal(answer)
    return answer


def _refusal(answer: httpx.Response) -> TraceError:
    try:
        said: dict[str, Any] = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = {}
    is_final = answer.is_client_error and answer.status_code not in TRY_AGAIN
    otherwise = Refused if is_final else ServiceUnavailable
    return _said({"message": f"the Dispatcher answered {answer.status_code}", **said}, otherwise)


def _said(said: Mapping[str, Any], otherwise: type[TraceError]) -> TraceError:
    """An error as the door has put it into words, as the error it is."""
    kind = REFUSALS.get(said.get("code", ""), otherwise)
    return kind(said.get("message") or "no reason was given", where=said.get("where"), hint=said.get("hint"))


def _message(answer: httpx.Response) -> str:
    try:
        body: Any = answer.json()
        return str(body["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
