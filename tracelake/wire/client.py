"""Typed calls to the Dispatcher's APIs, for every process that is not the Dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec

from tracelake.domain.access.service_tokens import TokenListener
from tracelake.errors import (
    InvitationExpired,
    NotFound,
    Refused,
    ServiceUnavailable,
    SettingsError,
)
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.tls import client_context
from tracelake.settings import Settings
from tracelake.wire.internal.changes import CHANGES_SECONDS, ChangesAnswer
from tracelake.wire.internal.comparisons import ComparisonHeld, ComparisonReport, ComparisonTaken
from tracelake.wire.internal.identity import (
    CredentialsAnswer,
    CredentialsRequest,
    ServiceTokenAnswer,
    ServiceTokenCheck,
    UserAnswer,
    UserLoginAnswer,
    UserLoginRequest,
    UserTokenAnswer,
    UserTokenRequest,
)
from tracelake.wire.internal.queries import AuditAnswer, AuditRequest, AuditRow, RelationsAnswer, RelationsRequest
from tracelake.wire.internal.refusals import Refusal, RefusalsRequest, RefusalsStored
from tracelake.wire.internal.rpc_shares import RpcSharesAnswer, RpcSharesRequest
from tracelake.wire.internal.sources import (
    FiredAnswer,
    HookBatchAnswer,
    HookBatchRequest,
    HookItem,
    HookOutcome,
)
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.send_call import error_of, message_of, refusal_of, send_body, send_call
from tracelake.wire.service.headers import SERVICE_TOKEN, ServiceUser
from tracelake.wire.service.token import ServiceToken
from tracelake.wire.task.buffers import (
    BufferAnswer,
    BufferPublishAnswer,
    BufferPublishRequest,
    BufferRequest,
    SettleAnswer,
    SettleRequest,
)
from tracelake.wire.task.lifecycle import (
    MAX_CLAIMS,
    STOPS_SECONDS,
    ClaimBatchAnswer,
    ClaimBatchRequest,
    Claimed,
    DrainAnswer,
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
    CompleteItem,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
    FilesAnswer,
    FilesRequest,
)
from tracelake.wire.user.alerts import (
    FailureAlert,
    FailuresAnswer,
    FailuresRequest,
    Target,
    TargetRequest,
    TargetsAnswer,
    TargetsRequest,
)
from tracelake.wire.user.datasets import DatasetDetail
from tracelake.wire.user.ledger import LedgerPage, LedgerQuery
from tracelake.wire.user.releases import ReleaseDetail

CLAIM_BATCH_ANSWER = msgspec.json.Decoder(ClaimBatchAnswer)
CREDENTIALS_ANSWER: msgspec.json.Decoder[CredentialsAnswer] = msgspec.json.Decoder(CredentialsAnswer)
CONNECTIONS = 100
"""Of one process to a Dispatcher: fewer than the requests that it serves at once, so that others are served too."""


class DispatcherClient:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ready(self) -> None:
        """Raise ServiceUnavailable unless the Dispatcher and its database answer."""
        await self._get("/readyz")

    async def user(self, user: ServiceUser) -> UserAnswer:
        answer = await self._get("/internal/user", headers=user.headers, external_id=user.subject)
        return msgspec.json.decode(answer.content, type=UserAnswer)

    async def service_of(self, token_hash: bytes) -> str:
        """The service whose token has this hash at the listener of this process; NotFound unless it holds."""
        request = ServiceTokenCheck(token_hash=token_hash.hex())
        return (await send_call(self.http, "/internal/service-token", request, ServiceTokenAnswer, {})).service

    async def user_token(self, token_hash: bytes) -> UUID:
        """The id of the personal access token with this hash; NotFound unless it holds."""
        request = UserTokenRequest(token_hash=token_hash.hex())
        return (await send_call(self.http, "/internal/user-token", request, UserTokenAnswer, {})).token_id

    async def user_login(self, request: UserLoginRequest) -> UserLoginAnswer:
        """Makes the user of a verified token known, if a rule of `login_rules` says so."""
        return await send_call(self.http, "/internal/user-login", request, UserLoginAnswer, {})

    async def store_refusals(self, refusals: Sequence[Refusal]) -> int:
        """Identities that this process refused, for the audit. How many entries were made."""
        request = RefusalsRequest(refusals=list(refusals))
        return (await send_call(self.http, "/internal/refusals", request, RefusalsStored, {})).stored

    async def relations(self, request: RelationsRequest, user: ServiceUser | None = None) -> RelationsAnswer:
        """Where the rows of a query are stored, for this user, or for the attempt that the request names."""
        headers = user.headers if user is not None else {}
        return await send_call(self.http, "/internal/query/relations", request, RelationsAnswer, headers)

    async def ledger(self, user: ServiceUser, dataset: str, query: LedgerQuery) -> LedgerPage:
        """A page of the ledger of a dataset, if this user may see it."""
        path = f"/datasets/{quote(dataset, safe='')}/ledger"
        answer = await self._get_as(user, path, after=query.after, limit=query.limit)
        return msgspec.json.decode(answer.content, type=LedgerPage)

    async def dataset(self, user: ServiceUser, dataset: str) -> DatasetDetail:
        """A dataset by name or uuid, if this user may see it."""
        answer = await self._get_as(user, f"/datasets/{quote(dataset, safe='')}")
        return msgspec.json.decode(answer.content, type=DatasetDetail)

    async def _get_as(self, user: ServiceUser, path: str, **query: int) -> httpx.Response:
        try:
            answer = await self.http.get(f"/internal/v1{path}", params=query, headers=user.headers)
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
        if answer.is_error:
            raise refusal_of(answer)
        return answer

    async def audit(self, rows: Sequence[AuditRow]) -> AuditAnswer:
        request = AuditRequest(rows=list(rows))
        return await send_call(self.http, "/internal/query/audit", request, AuditAnswer)

    async def release(self, user: ServiceUser, release: UUID) -> ReleaseDetail:
        answer = await self._get_as(user, f"/releases/{release}")
        return msgspec.json.decode(answer.content, type=ReleaseDetail)

    async def take_comparison(self) -> ComparisonTaken:
        answer = await send_body(self.http, "/internal/query/comparisons/take", b"", {})
        return msgspec.json.decode(answer.content, type=ComparisonTaken)

    async def comparison_changes(self, mark: str, seconds: float) -> ChangesAnswer:
        """Waits until comparisons were requested since that mark, for so many seconds at most."""
        return await self._changes("/internal/query/comparisons/changes", mark, seconds)

    async def report_comparison(self, report: ComparisonReport) -> bool:
        return (await send_call(self.http, "/internal/query/comparisons/report", report, ComparisonHeld)).wanted

    async def jwks(self) -> Mapping[str, Any]:
        """The public keys of capability tokens, as they are published."""
        found: Mapping[str, Any] = (await self._get("/internal/jwks/task")).json()
        return found

    async def worker_load(self, runtime: str) -> WorkerLoadAnswer:
        """What the tasks of a runtime need: decides how many workers are wanted."""
        answer = await self._get("/internal/worker-load", runtime=runtime)
        return msgspec.json.decode(answer.content, type=WorkerLoadAnswer)

    async def lease_rpc_shares(self, request: RpcSharesRequest) -> RpcSharesAnswer:
        """What this worker may use of the limits of pools of nodes, for some seconds."""
        return await send_call(self.http, "/internal/rpc-shares", request, RpcSharesAnswer)

    async def drain_sources(self) -> int:
        """Asks every source to stop, because the system shuts down. Returns how many."""
        answer = await send_body(self.http, "/internal/sources/drain", b"", {})
        return msgspec.json.decode(answer.content, type=DrainAnswer).stopping

    async def stops(self, mark: str) -> StopsAnswer:
        """Waits until tasks were ended or held since that mark, for some seconds at most; does not wait without one."""
        answer = await self._get("/internal/task-stops", wait=STOPS_SECONDS + 10 if mark else 5, after=mark)
        return msgspec.json.decode(answer.content, type=StopsAnswer)

    async def fire_schedules(self) -> FiredAnswer:
        """Has the Dispatcher decide the slots that are due."""
        answer = await send_body(self.http, "/internal/schedules/fire", b"", {})
        return msgspec.json.decode(answer.content, type=FiredAnswer)

    async def schedule_changes(self, mark: str, seconds: float) -> ChangesAnswer:
        """Waits until schedules have changed since that mark, for so many seconds at most."""
        return await self._changes("/internal/schedules/changes", mark, seconds)

    async def hooks(self, items: Sequence[HookItem]) -> list[HookOutcome]:
        """Calls to webhook sources, for the Gateway; an outcome for each, in their order."""
        request = HookBatchRequest(items=list(items))
        return (await send_call(self.http, "/internal/hooks", request, HookBatchAnswer)).outcomes

    async def claim_batch(
        self, task_ids: Sequence[UUID], worker_id: str, claim_id: UUID | None = None
    ) -> list[Claimed | NotClaimed]:
        """Several claims in one call, answered in their order; with the same `claim_id` again, as before."""
        body = msgspec.json.encode(ClaimBatchRequest(task_ids=list(task_ids), worker_id=worker_id, claim_id=claim_id))
        answer = await send_body(self.http, "/internal/task-claim-batch", body, {})
        try:
            return CLAIM_BATCH_ANSWER.decode(answer.content).answers
        except msgspec.DecodeError as wrong:  # of a Dispatcher that is newer, say
            raise Refused(f"the Dispatcher's answer to a claim cannot be read: {wrong}") from None

    async def buffer_records(self, publish_ids: Sequence[UUID], datasets: Sequence[UUID] = ()) -> BufferAnswer:
        """The records of these publishes, and the tables of their datasets and of `datasets`."""
        request = BufferRequest(publish_ids=list(publish_ids), datasets=list(datasets))
        return await send_call(self.http, "/internal/buffer/records", request, BufferAnswer)

    async def settle_buffers(self, request: SettleRequest) -> int:
        """Reports the outcomes of batches. Returns how many were new."""
        return (await send_call(self.http, "/internal/buffer/settle", request, SettleAnswer)).settled

    async def alert_targets(self, requests: Sequence[TargetRequest]) -> list[Target]:
        """Where alerts go, with the secrets of their channels: for the delivery process."""
        request = TargetsRequest(targets=list(requests))
        return (await send_call(self.http, "/internal/alerts/targets", request, TargetsAnswer)).targets

    async def failure_alerts(self, task_ids: Sequence[UUID]) -> list[FailureAlert]:
        """The alerts about tasks that have failed for good: for the sink."""
        request = FailuresRequest(task_ids=list(task_ids))
        return (await send_call(self.http, "/internal/alerts/failures", request, FailuresAnswer)).alerts

    async def _changes(self, path: str, mark: str, seconds: float) -> ChangesAnswer:
        limit = min(seconds, CHANGES_SECONDS)
        answer = await self._get(path, wait=limit + 10, after=mark, seconds=f"{limit:.3f}")
        return msgspec.json.decode(answer.content, type=ChangesAnswer)

    async def _get(
        self, path: str, *, wait: float | None = None, headers: Mapping[str, str] | None = None, **parameters: str
    ) -> httpx.Response:
        timeout = self.http.timeout if wait is None else httpx.Timeout(wait, connect=5)
        try:
            answer = await self.http.get(path, params=parameters, timeout=timeout, headers=headers)
        except httpx.HTTPError as away:
            raise ServiceUnavailable(f"the Dispatcher does not answer: {away or type(away).__name__}") from None
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise NotFound(message_of(answer), where=path)
        if answer.is_error:
            if isinstance(refusal := refusal_of(answer), InvitationExpired):
                raise refusal
            raise ServiceUnavailable(f"the Dispatcher answered {answer.status_code}: {message_of(answer)}", where=path)
        return answer


Completions = Coalesced[CompleteItem, CompleteAnswer]
LARGE_BYTES: Final = 8 * 1024
"""A completion of this size with its token is sent by itself: a batch of them must fit into one body."""


def completions(
    send: Callable[[Sequence[CompleteItem]], Awaitable[Sequence[CompleteAnswer | Exception]]],
) -> Completions:
    """Completions of one worker in batches. Two calls at once: while one is answered, the next is written."""
    key = attrgetter("completion.task_id")
    return Coalesced(send, key=key, at_once=2, most=MAX_CLAIMS, slow_seconds=0)


class TaskClient:
    """The calls of a task about itself, with its capability token."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._completions = completions(self._complete_several)

    async def heartbeat(self, token: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        return await send_call(self._http, "/v1/task/heartbeat", request, HeartbeatAnswer, {CAPABILITY_HEADER: token})

    async def events(self, token: str, request: EventsRequest) -> EventsAnswer:
        return await send_call(self._http, "/v1/task/events", request, EventsAnswer, {CAPABILITY_HEADER: token})

    async def files(self, token: str, request: FilesRequest) -> FilesAnswer:
        return await send_call(self._http, "/v1/task/files", request, FilesAnswer, {CAPABILITY_HEADER: token})

    async def logs(self, token: str, request: LogsRequest) -> LogsAnswer:
        return await send_call(self._http, "/v1/task/logs", request, LogsAnswer, {CAPABILITY_HEADER: token})

    async def credentials(self, token: str, request: CredentialsRequest) -> CredentialsAnswer:
        body = msgspec.json.encode(request)
        answer = await send_body(self._http, "/v1/task/credentials", body, {CAPABILITY_HEADER: token})
        return CREDENTIALS_ANSWER.decode(answer.content)

    async def publish_buffer(self, token: str, request: BufferPublishRequest) -> BufferPublishAnswer:
        headers = {CAPABILITY_HEADER: token}
        return await send_call(self._http, "/v1/task/buffer-publish", request, BufferPublishAnswer, headers)

    async def complete(self, token: str, request: CompleteRequest) -> CompleteAnswer:
        """By itself, or with others that end in the same moment."""
        body = msgspec.json.encode(request)
        if len(body) + len(token) >= LARGE_BYTES:
            return await self._complete_one(token, body)
        return await self._completions(CompleteItem(capability_token=token, completion=request))

    async def _complete_one(self, token: str, body: bytes) -> CompleteAnswer:
        answer = await send_body(self._http, "/v1/task/complete", body, {CAPABILITY_HEADER: token})
        return msgspec.json.decode(answer.content, type=CompleteAnswer)

    async def _complete_several(self, items: Sequence[CompleteItem]) -> Sequence[CompleteAnswer | Exception]:
        if len(items) == 1:
            return [await self._complete_one(items[0].capability_token, msgspec.json.encode(items[0].completion))]
        body = msgspec.json.encode(CompleteBatchRequest(items=list(items)))
        answer = await send_body(self._http, "/v1/task/complete-batch", body, {})
        outcomes = msgspec.json.decode(answer.content, type=CompleteBatchAnswer).outcomes
        return [outcome.answer or error_of(outcome.error or {}, Refused) for outcome in outcomes]


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
    async with service_client(settings, settings.endpoints.dispatcher_internal, "dispatcher") as http:
        if http is None:
            missing = "endpoints.dispatcher_internal"
            raise SettingsError(f"{missing} is not set", where=missing, hint="`trace up` fills it in")
        yield DispatcherClient(http)


@asynccontextmanager
async def service_client(
    settings: Settings, url: str | None, listener: TokenListener, seconds: float = 10
) -> AsyncIterator[httpx.AsyncClient | None]:
    """Calls to an internal listener, with the token of this process; None if this system runs without it."""
    if url is None:
        yield None
        return
    token = ServiceToken(settings.identity)

    async def show_token(request: httpx.Request) -> None:
        request.headers[SERVICE_TOKEN] = token.for_listener(listener)

    # Kept open, as many as there may be: a TLS handshake costs more than most calls.
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    async with AsyncClient(
        base_url=url,
        event_hooks={"request": [show_token]},
        verify=client_context(settings.tls.ca),
        timeout=httpx.Timeout(seconds, connect=10),
        limits=limits,
    ) as http:
        yield http
