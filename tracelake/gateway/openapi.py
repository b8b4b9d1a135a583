"""The user API as OpenAPI, made from the same table and types that the Dispatcher decodes by."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.internal.identity import UserAnswer
from tracelake.wire.internal.queries import ARROW, QueryAnswer, QueryRequest
from tracelake.wire.internal.sources import HookAnswer
from tracelake.wire.openapi import REFUSALS, answers, as_json, schemas


class DescribedListener(FastAPI):
    """A FastAPI application whose bodies and answers are msgspec types."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            kinds = [kind for call in CALLS.values() for kind in (call.answer, call.body) if kind is not None]
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(
                schemas([*kinds, UserAnswer, QueryRequest, QueryAnswer, HookAnswer])
            )
            components["securitySchemes"] = {"user": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
            document["security"] = [{"user": []}]
        return self.openapi_schema or {}


LIMITS = {
    "422": "It asked for more than it may have, or its rows could not be made",
    "429": "As many queries run and wait as can be served; a retry helps",
}


def hook_operation() -> dict[str, Any]:
    refusals = {
        "400": "The body is not JSON",
        "401": "The signature is missing, wrong or too old, or there is no such source",
        "413": "The body is too large",
        "503": "It cannot be accepted now; a retry helps",
    }
    responses = answers(HookAnswer, refusals)
    responses["202"] = responses.pop("200")
    body = {"required": True, "content": {"application/json": {"schema": {}}}}
    return {"operationId": "hook", "tags": ["hooks"], "security": [], "requestBody": body, "responses": responses}


def query_operation() -> dict[str, Any]:
    responses = answers(QueryAnswer, REFUSALS | LIMITS)
    responses["200"]["content"] |= {ARROW: {"schema": {"type": "string", "format": "binary"}}}
    return {
        "operationId": "query",
        "tags": ["query"],
        "description": "For a reader or higher.",
        "requestBody": {"required": True, "content": as_json(QueryRequest)},
        "responses": responses,
    }
