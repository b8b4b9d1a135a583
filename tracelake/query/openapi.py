"""Both doors of the Query service as OpenAPI, made from the types that they decode by. Served at the internal one."""

from __future__ import annotations

from typing import Any

from tracelake.wire.openapi import answers, as_json, schemas
from tracelake.wire.query_messages import ARROW, QueryAnswer, QueryRequest, TaskQueryRequest
from tracelake.wire.user_calls import USER

SECURITY = {
    "worker": {"type": "apiKey", "in": "header", "name": "X-Trace-Worker-Token"},
    "task": {"type": "apiKey", "in": "header", "name": "X-Trace-Task-Capability"},
}
SAID = {
    "400": "What was sent cannot be right, or the query is refused; `where` says what",
    "401": "No token, or one that does not hold",
    "403": "A good token that does not allow this",
    "404": "There was nothing yet as of then",
    "409": "The attempt is no longer the current one, or what it pinned is no longer kept",
    "422": "It asked for more than it may have, or its rows could not be made",
    "429": "As many questions run and wait as can be served; trying again helps",
    "503": "A part of Trace is away; trying again may help",
}


def document() -> dict[str, Any]:
    user = {"name": USER, "in": "header", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trace Query", "version": "1"},
        "paths": {
            "/v1/task/query": {"post": _query("task", "task_query", TaskQueryRequest)},
            "/v1/query": {"post": _query("worker", "query", QueryRequest) | {"parameters": [user]}},
        },
        "components": {
            "schemas": schemas([TaskQueryRequest, QueryRequest, QueryAnswer]),
            "securitySchemes": SECURITY,
        },
    }


def _query(identity: str, name: str, body: type) -> dict[str, Any]:
    responses = answers(QueryAnswer, SAID)
    responses["200"]["content"] |= {ARROW: {"schema": {"type": "string", "format": "binary"}}}
    return {
        "operationId": name,
        "summary": "The rows of a SELECT, or where they were exported to",
        "security": [{identity: []}],
        "parameters": [],
        "requestBody": {"required": True, "content": as_json(body)},
        "responses": responses,
    }
