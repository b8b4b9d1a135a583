"""Authenticates calls: the internal API takes a worker token, the task API a capability; neither replaces the other."""

from __future__ import annotations

import time

import asyncpg
from starlette.requests import Request

from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.domain.grants import ALWAYS
from tracelake.errors import Forbidden, Unauthenticated
from tracelake.runtime.listeners import bearer
from tracelake.store.identity import hash_token, is_worker_token
from tracelake.wire.message import Fenced

WORKER_TOKEN = "x-trace-worker-token"  # noqa: S105 - a header's name
CAPABILITY = "x-trace-task-capability"
REMEMBERED_SECONDS = 5.0
"""How long a worker token that was checked is trusted: a revoked one can be used for as long."""


class WorkerGate:
    """Checks worker tokens, each against the database at most every few seconds."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._good: dict[bytes, float] = {}

    async def require(self, request: Request) -> None:
        await self._check(request.headers.get(WORKER_TOKEN), f"header {WORKER_TOKEN}")

    async def require_bearer(self, request: Request) -> None:
        """The same token, also as Prometheus can send it: `Authorization: Bearer`."""
        if WORKER_TOKEN in request.headers:
            await self.require(request)
        else:
            await self._check(bearer(request), "header authorization")

    async def _check(self, token: str | None, where: str) -> None:
        if token is None:
            raise Unauthenticated("the internal API needs a worker token", where=where)
        shown = hash_token(token)
        if self._good.get(shown, 0.0) > time.monotonic():
            return
        if not await is_worker_token(self._pool, token):
            self._good.pop(shown, None)
            raise Unauthenticated("the worker token is unknown or was revoked", where=where)
        self._good[shown] = time.monotonic() + REMEMBERED_SECONDS


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
