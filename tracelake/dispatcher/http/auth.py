"""Authenticates calls: a service by its token at the internal API, a task by its capability at the task API."""

from __future__ import annotations

import time

import asyncpg
from starlette.requests import Request

from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.identity.known_tokens import KnownTokens
from tracelake.domain.access.grants import ALWAYS
from tracelake.domain.access.service_tokens import hash_token, proven_until
from tracelake.errors import Forbidden, ServiceUnavailable, Unauthenticated
from tracelake.runtime.request_middleware import address_of
from tracelake.store.identity import User, find_user
from tracelake.wire.calls.user_calls import USER
from tracelake.wire.internal.refusals import RefusalCounts
from tracelake.wire.message import Fenced
from tracelake.wire.service.gate import UNKNOWN, ServiceCaller, caller_of, named_user, shown_token
from tracelake.wire.service.headers import PROOF, SERVICE_TOKEN, ServiceUser

CAPABILITY = "x-trace-task-capability"


class ServiceGate:
    """Finds the service of a call among the tokens that this process knows."""

    def __init__(self, known: KnownTokens, refusals: RefusalCounts) -> None:
        self._known, self._refusals = known, refusals

    async def caller(self, request: Request) -> ServiceCaller:
        shown = hash_token(shown_token(request))
        found = await self._known.find(shown, "dispatcher")
        if found is None:
            self._refusals.add("service_token", shown.hex(), address_of(request))
            raise Unauthenticated(UNKNOWN, where=f"header {SERVICE_TOKEN}")
        return found


async def calling_user(pool: asyncpg.Pool, known: KnownTokens, request: Request) -> User:
    """The user for whom the call is made: whom the Gateway names, or whom it asked another service to act for."""
    named = named_user(request)
    await require_proof(known, request, named)
    found = await find_user(pool, named.subject)
    if found is None:
        raise Unauthenticated("the token is valid, but its user is not known here", where=f"header {USER}")
    return found


async def require_proof(known: KnownTokens, request: Request, named: ServiceUser) -> None:
    """Only the Gateway names users by its own word: any other service shows what the Gateway wrote for it."""
    service = caller_of(request).service
    if service == "gateway":
        return
    until = proven_until(named.proof, await known.gateways(), named.subject, service)
    if until is None:
        raise Forbidden(f"no Gateway asked the service {service} to act for this user", where=f"header {PROOF}")
    if until < time.time():  # a call that took longer than any should: the user may make it again
        raise ServiceUnavailable("the call of the user began too long ago", where=f"header {PROOF}", hint="repeat it")


async def require_capability(request: Request, verifier: Verifier, body: Fenced) -> Claims:
    path: str = request.scope["path"]
    return await judged(verifier, request.headers.get(CAPABILITY), body, f"{request.method} {path}")


async def judged(verifier: Verifier, token: str | None, body: Fenced, endpoint: str) -> Claims:
    """The token's claims, if it is this very attempt's. Whether the attempt still counts is the fence's question."""
    claims = await verifier.verify(token)
    if claims.task_id != body.task_id:
        raise Forbidden("the token is another task's", where="/task_id")
    if claims.attempt != body.attempt:
        raise Forbidden("the token is another attempt's", where="/attempt")
    # Calls that every attempt may make are the most frequent: they need no look at the grants.
    if endpoint not in ALWAYS and endpoint not in claims.grants.endpoints:
        raise Forbidden("the token does not grant this call", where=endpoint.partition(" ")[2])
    return claims
