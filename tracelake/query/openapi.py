"""The OpenAPI document of both listeners of the Query service, made from the request and answer types."""

from __future__ import annotations

from typing import Any

from tracelake.wire.calls.user_calls import CALLS, USER
from tracelake.wire.internal.queries import ARROW, QueryAnswer, QueryRequest, TaskQueryRequest
from tracelake.wire.openapi import INTERNAL_SECURITY, answers, as_json, operation, schemas

VERIFY = CALLS["verify_dataset"]
DIFF = CALLS["diff_dataset"]

ERRORS = {
    "400": "The request is invalid, or the query is refused; `where` names the part",
    "401": "No token, or an invalid one",
    "403": "A valid token that does not allow this",
    "404": "There is no commit at that time",
    "409": "The attempt is no longer the current one, or what it pinned is no longer kept",
    "422": "The result is too large, or its rows could not be computed",
    "429": "Too many queries run and wait; retry",
    "503": "A component of Trace is unavailable; a retry may help",
}


def document() -> dict[str, Any]:
    user = {"name": USER, "in": "header", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trace Query", "version": "1"},
        "paths": {
            "/v1/task/query": {"post": _query("task", "task_query", TaskQueryRequest)},
            "/v1/query": {"post": _query("service", "query", QueryRequest) | {"parameters": [user]}},
            f"/internal/v1{VERIFY.path}": {"get": operation(VERIFY) | {"security": [{"service": []}]}},
            f"/internal/v1{DIFF.path}": {"get": operation(DIFF) | {"security": [{"service": []}]}},
        },
        "components": {
            "schemas": schemas([TaskQueryRequest, QueryRequest, QueryAnswer, VERIFY.answer, DIFF.answer]),
            "securitySchemes": INTERNAL_SECURITY,
        },
    }


def _query(identity: str, name: str, body: type) -> dict[str, Any]:
    responses = answers(QueryAnswer, ERRORS)
    responses["200"]["content"] |= {ARROW: {"schema": {"type": "string", "format": "binary"}}}
    return {
        "operationId": name,
        "summary": "The rows of a SELECT, or where they were exported to",
        "security": [{identity: []}],
        "parameters": [],
        "requestBody": {"required": True, "content": as_json(body)},
        "responses": responses,
    }
