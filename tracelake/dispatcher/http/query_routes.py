"""Calls of the Query service: where the rows of a query are, for a user or a running attempt; and its audit."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.datasets.resolve_relations import task_relations, user_relations
from tracelake.dispatcher.datasets.store_audit import store_audit
from tracelake.dispatcher.http.auth import WorkerGate
from tracelake.dispatcher.http.user_routes import asking_user
from tracelake.runtime.listeners import json_response
from tracelake.wire.query_messages import AuditRequest, RelationsRequest
from tracelake.wire.read_call import read_message


def query_routes(control: Control, gate: WorkerGate) -> list[Route]:
    async def relations(request: Request) -> Response:
        await gate.require(request)
        asked = await read_message(request, RelationsRequest)
        if asked.task_id is not None:
            return json_response(await task_relations(control.pool, asked))
        return json_response(await user_relations(control.pool, await asking_user(control.pool, request), asked))

    async def audit(request: Request) -> Response:
        await gate.require(request)
        return json_response(await store_audit(control.pool, await read_message(request, AuditRequest)))

    return [
        Route("/internal/query/relations", relations, methods=["POST"]),
        Route("/internal/query/audit", audit, methods=["POST"]),
    ]
