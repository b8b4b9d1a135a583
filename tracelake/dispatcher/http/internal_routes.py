"""The internal API: claims and fetches for workers, users and their calls for the Gateway, keys for verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.alerts.for_delivery import alert_targets, failure_alerts
from tracelake.dispatcher.audit.record import begin_for, end_for
from tracelake.dispatcher.audit.refusals import store_refusals
from tracelake.dispatcher.buffers.records import buffer_records
from tracelake.dispatcher.buffers.settle import settle_buffers
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.lease_rpc_shares import lease_rpc_shares
from tracelake.dispatcher.flow.read_worker_load import read_worker_load
from tracelake.dispatcher.http.auth import ServiceGate, calling_user, require_proof
from tracelake.dispatcher.http.openapi import document
from tracelake.dispatcher.http.query_routes import query_routes
from tracelake.dispatcher.http.user_routes import user_routes
from tracelake.dispatcher.http.waiting_calls import changes_route, read_mark
from tracelake.dispatcher.identity.known_tokens import KnownTokens
from tracelake.dispatcher.identity.log_in import log_in
from tracelake.dispatcher.sources.accept_hooks import HookCall
from tracelake.dispatcher.sources.fire_schedules import fire_schedules
from tracelake.dispatcher.sources.stop_all import drain_sources
from tracelake.dispatcher.tasks.claim import bind_claims
from tracelake.dispatcher.tasks.fetch import fetch_task
from tracelake.dispatcher.tasks.names import fields
from tracelake.errors import InvalidRequest, NotFound, TraceError, Unavailable
from tracelake.runtime.listeners import cancel_on_disconnect, json_response, listener_app
from tracelake.runtime.logs import add_log_fields, is_debugging, log_fields
from tracelake.runtime.metrics import OPENMETRICS_TEXT
from tracelake.runtime.tracing import is_tracing, set_attributes
from tracelake.store.db import OUTAGES, answers, unavailable
from tracelake.store.identity import find_user, find_user_token
from tracelake.store.signing_keys import published
from tracelake.wire.calls.read_call import read_message
from tracelake.wire.internal.identity import (
    ServiceTokenAnswer,
    ServiceTokenCheck,
    UserLoginRequest,
    UserTokenAnswer,
    UserTokenRequest,
)
from tracelake.wire.internal.refusals import RefusalsRequest, RefusalsStored
from tracelake.wire.internal.rpc_shares import RpcSharesRequest
from tracelake.wire.internal.sources import (
    MAX_HOOKS_BODY,
    HookBatchAnswer,
    HookBatchRequest,
    HookOutcome,
)
from tracelake.wire.record_call import AuditBeginRequest, AuditBegun, AuditEnded, AuditEndRequest
from tracelake.wire.service.gate import UNKNOWN, caller_of, guarded
from tracelake.wire.service.headers import PROOF, ServiceUser
from tracelake.wire.task.buffers import BufferRequest, SettleRequest
from tracelake.wire.task.lifecycle import (
    STOPS_SECONDS,
    ClaimBatchAnswer,
    ClaimBatchRequest,
    Claimed,
    ClaimRequest,
    DrainAnswer,
    NotClaimed,
)
from tracelake.wire.user.alerts import FailuresRequest, TargetsRequest

log = structlog.get_logger()


def internal_api(control: Control) -> Starlette:
    known, payloads = KnownTokens(control.pool, control.after_commit.service_tokens), control.payloads()

    async def task_fetch(request: Request) -> Response:
        task_id = _uuid(_parameter(request, "task_id"), "task_id")
        runtimes = caller_of(request).runtimes
        return json_response(await fetch_task(control.pool, control.jobs, payloads, runtimes, task_id))

    async def openapi(request: Request) -> Response:
        del request
        return json_response(document())

    async def jwks(request: Request) -> Response:
        del request  # public keys: no authentication
        return json_response(await published(control.pool))

    async def sources_drain(request: Request) -> Response:
        del request
        return json_response(DrainAnswer(stopping=await drain_sources(control.pool, control.after_commit)))

    async def batches(request: Request) -> Response:
        return json_response(
            await buffer_records(
                control.pool, control.places.scratch_bucket, await read_message(request, BufferRequest)
            )
        )

    async def settle(request: Request) -> Response:
        return json_response(
            await settle_buffers(control.pool, control.after_commit.outbox, await read_message(request, SettleRequest))
        )

    async def metrics(request: Request) -> Response:
        del request
        await control.gauges.refresh()
        return Response(control.metrics.text(), media_type=OPENMETRICS_TEXT)

    routes = [
        Route("/internal/sources/drain", sources_drain, methods=["POST"]),
        Route("/internal/buffer/records", batches, methods=["POST"]),
        Route("/internal/buffer/settle", settle, methods=["POST"]),
        Route("/metrics", metrics, methods=["GET"]),
        *_for_workers(control),
        Route("/internal/task-fetch", task_fetch, methods=["GET"]),
        *_about_identities(control, known),
        Route("/internal/openapi.json", openapi, methods=["GET"]),
        Route("/internal/jwks/task", jwks, methods=["GET"]),
        *query_routes(control, known),
        *_for_delivery(control),
        *_for_services_of_users(control, known),
        *_for_schedulers(control),
        *_for_senders(control),
        *user_routes(control, known),
    ]
    allowed = guarded("dispatcher", routes, ServiceGate(known, control.refusals))
    return listener_app(allowed, lambda: answers(control.pool), OUTAGES, lambda away: unavailable(away, control.home))


def _about_identities(control: Control, known: KnownTokens) -> list[Route]:
    async def user(request: Request) -> Response:
        subject = _parameter(request, "external_id")
        await require_proof(known, request, ServiceUser(subject, request.headers.get(PROOF, "")))
        found = await find_user(control.pool, subject)
        if found is None:
            raise NotFound("no such user", where="query external_id")
        return json_response(found)

    async def user_token(request: Request) -> Response:
        asked = await read_message(request, UserTokenRequest)
        found = await find_user_token(control.pool, bytes.fromhex(asked.token_hash))
        if found is None:
            raise NotFound("no such token, or it has expired or was revoked", where="/token_hash")
        return json_response(UserTokenAnswer(token_id=found))

    async def user_login(request: Request) -> Response:
        asked = await read_message(request, UserLoginRequest)
        return json_response(await log_in(control.pool, control.login_rules, asked))

    async def service_token(request: Request) -> Response:
        asked = await read_message(request, ServiceTokenCheck)
        # Only as the listener of the calling service receives it: what others receive is not its business.
        listener = caller_of(request).service
        found = await known.find(bytes.fromhex(asked.token_hash), listener)
        if found is None:
            control.refusals.add("service_token", asked.token_hash, f"listener of {listener}")
            raise NotFound(UNKNOWN, where="/token_hash")
        return json_response(ServiceTokenAnswer(service=found.service))

    async def refusals(request: Request) -> Response:
        asked = await read_message(request, RefusalsRequest)
        return json_response(RefusalsStored(stored=await store_refusals(control.pool, asked.refusals)))

    return [
        Route("/internal/refusals", refusals, methods=["POST"]),
        Route("/internal/user", user, methods=["GET"]),
        Route("/internal/user-token", user_token, methods=["POST"]),
        Route("/internal/user-login", user_login, methods=["POST"]),
        Route("/internal/service-token", service_token, methods=["POST"]),
    ]


def _for_workers(control: Control) -> list[Route]:
    claim = control.claimer().batched()

    async def task_claim(request: Request) -> Response:
        body = await read_message(request, ClaimRequest)
        add_log_fields({"task": body.task_id})
        (bound,) = bind_claims([body], caller_of(request).runtimes)
        answer = await claim(bound)
        if isinstance(answer, Claimed) and (job := control.names.of(body.task_id)) is not None:
            _name(fields(job, body.task_id, answer.attempt), body.worker_id)
        return json_response(answer)

    async def task_claim_batch(request: Request) -> Response:
        body = await read_message(request, ClaimBatchRequest)
        answers = await claim.together(bind_claims(body.one_by_one(), caller_of(request).runtimes))
        if is_debugging():
            _log_claimed(control, answers, body.worker_id)
        return json_response(ClaimBatchAnswer(answers=answers))

    async def stops(request: Request) -> Response:
        waits = control.after_commit.stops.after(read_mark(request), STOPS_SECONDS)
        return json_response(await cancel_on_disconnect(request, waits))

    async def worker_load(request: Request) -> Response:
        return json_response(await read_worker_load(control.pool, _parameter(request, "runtime")))

    async def rpc_shares(request: Request) -> Response:
        asked = await read_message(request, RpcSharesRequest)
        return json_response(await lease_rpc_shares(control.pool, asked, control.flow.rpc_lease_seconds))

    return [
        Route("/internal/rpc-shares", rpc_shares, methods=["POST"]),
        Route("/internal/worker-load", worker_load, methods=["GET"]),
        Route("/internal/task-stops", stops, methods=["GET"]),
        Route("/internal/task-claim", task_claim, methods=["POST"]),
        Route("/internal/task-claim-batch", task_claim_batch, methods=["POST"]),
    ]


def _for_delivery(control: Control) -> list[Route]:
    async def targets(request: Request) -> Response:
        return json_response(await alert_targets(control.pool, await read_message(request, TargetsRequest)))

    async def failures(request: Request) -> Response:
        return json_response(
            await failure_alerts(control.pool, control.failure_alert, await read_message(request, FailuresRequest))
        )

    return [
        Route("/internal/alerts/targets", targets, methods=["POST"]),
        Route("/internal/alerts/failures", failures, methods=["POST"]),
    ]


def _for_services_of_users(control: Control, known: KnownTokens) -> list[Route]:
    """The Query service and the delivery process answer calls of users too."""

    async def begin(request: Request) -> Response:
        asked = await read_message(request, AuditBeginRequest)
        user = await calling_user(control.pool, known, request)
        return json_response(AuditBegun(entry=await begin_for(control.pool, caller_of(request).service, user, asked)))

    async def end(request: Request) -> Response:
        asked = await read_message(request, AuditEndRequest)
        user = await calling_user(control.pool, known, request)
        await end_for(control.pool, caller_of(request).service, user, asked)
        return json_response(AuditEnded(entry=asked.entry))

    return [
        Route("/internal/audit/begin", begin, methods=["POST"]),
        Route("/internal/audit/end", end, methods=["POST"]),
    ]


def _for_schedulers(control: Control) -> list[Route]:
    async def fire(request: Request) -> Response:
        del request
        return json_response(await fire_schedules(control.pool, control.after_commit))

    return [
        Route("/internal/schedules/fire", fire, methods=["POST"]),
        changes_route("/internal/schedules/changes", control.after_commit.schedules),
    ]


def _for_senders(control: Control) -> list[Route]:
    accept = control.hooks().batched()

    async def hooks(request: Request) -> Response:
        asked = await read_message(request, HookBatchRequest, MAX_HOOKS_BODY)
        calls = [HookCall(item.org, item.dag, item.job, item.headers, item.body) for item in asked.items]
        outcomes = [_hook_outcome(answer) for answer in await accept.settled(calls)]
        return json_response(HookBatchAnswer(outcomes=outcomes))

    return [Route("/internal/hooks", hooks, methods=["POST"])]


def _hook_outcome(answer: UUID | BaseException) -> HookOutcome:
    """A refusal is the answer to its own call; anything else that goes wrong is one to all."""
    if isinstance(answer, UUID):
        return HookOutcome(delivery_id=answer)
    if not isinstance(answer, TraceError):
        raise answer
    again = answer.retry_after if isinstance(answer, Unavailable) else None
    return HookOutcome(code=answer.code, message=answer.message, retry_after=again)


def _log_claimed(control: Control, answers: Sequence[Claimed | NotClaimed], worker: str) -> None:
    """Each line names its own task: the request as a whole has none."""
    for item in answers:
        if isinstance(item, Claimed) and (job := control.names.of(item.task.task_id)) is not None:
            with log_fields(**fields(job, item.task.task_id, item.attempt)):
                log.debug("claimed", worker=worker)


def _name(subject: dict[str, Any], worker: str) -> None:
    add_log_fields(subject)
    if is_tracing():
        set_attributes(**subject)
    if is_debugging():
        log.debug("claimed", worker=worker)


def _parameter(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if not value:
        raise InvalidRequest(f"`{name}` is missing", where=f"query {name}")
    return value


def _uuid(text: str, name: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidRequest(f"{text[:80]!r} is not a uuid", where=f"query {name}") from None
