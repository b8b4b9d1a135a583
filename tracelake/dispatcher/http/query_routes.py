"""Calls of the Query service: where the rows of a query are, its audit, and comparisons of releases."""

from __future__ import annotations

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.resolve_relations import task_relations, user_relations
from tracelake.dispatcher.datasets.store_audit import store_audit
from tracelake.dispatcher.http.auth import calling_user
from tracelake.dispatcher.http.waiting_calls import changes_route
from tracelake.dispatcher.identity.known_tokens import KnownTokens
from tracelake.dispatcher.limits.known_limits import KnownLimits
from tracelake.dispatcher.releases.take_comparison import report_comparison, take_comparison
from tracelake.runtime.listeners import json_response
from tracelake.wire.calls.read_call import read_message
from tracelake.wire.internal.comparisons import ComparisonReport
from tracelake.wire.internal.queries import AuditRequest, RelationsRequest


def query_routes(control: Control, known: KnownTokens) -> list[Route]:
    limits = KnownLimits(control.pool)

    async def relations(request: Request) -> Response:
        asked = await read_message(request, RelationsRequest)
        if asked.task_id is not None:
            found = await task_relations(control.pool, asked)
            return json_response(replace(found, limits=await limits.of(found.org_id)))
        user = await calling_user(control.pool, known, request)
        found = await user_relations(control.pool, user, asked)
        return json_response(replace(found, limits=await limits.of(found.org_id)))

    async def audit(request: Request) -> Response:
        return json_response(await store_audit(control.pool, await read_message(request, AuditRequest)))

    async def take(request: Request) -> Response:
        del request
        return json_response(await take_comparison(control.pool, control.after_commit))

    async def report(request: Request) -> Response:
        found = await read_message(request, ComparisonReport)
        return json_response(await report_comparison(control.pool, control.after_commit, found))

    return [
        Route("/internal/query/comparisons/take", take, methods=["POST"]),
        changes_route("/internal/query/comparisons/changes", control.after_commit.comparisons),
        Route("/internal/query/comparisons/report", report, methods=["POST"]),
        Route("/internal/query/relations", relations, methods=["POST"]),
        Route("/internal/query/audit", audit, methods=["POST"]),
    ]
