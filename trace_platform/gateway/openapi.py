"""The user API as OpenAPI, made from the same table and types that the Dispatcher decodes by."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from fastapi import FastAPI

from trace_platform.client import UserAnswer
from trace_platform.contracts import Message
from trace_platform.user_calls import CALLS, PARTS, Call

REFS = "#/components/schemas/{name}"
REFUSALS = {
    "400": "What was sent cannot be right; `where` says what",
    "401": "No user's token, or one that does not hold",
    "403": "The user's role does not allow it",
    "404": "No such thing in the user's organisation",
    "409": "It contradicts what is already so",
    "503": "A part of Trace is away; trying again may help",
}


class Refusal(msgspec.Struct):
    code: str
    message: str
    where: str | None
    hint: str | None
    retryable: bool


class RefusalAnswer(msgspec.Struct):
    """How every door refuses. `code` is stable."""

    error: Refusal


class DescribedDoor(FastAPI):
    """A FastAPI application whose bodies and answers are msgspec types."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            kinds = [kind for call in CALLS.values() for kind in (call.answer, call.body) if kind is not None]
            _, schemas = msgspec.json.schema_components([*kinds, UserAnswer, RefusalAnswer], ref_template=REFS)
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas)
            components["securitySchemes"] = {"user": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
            document["security"] = [{"user": []}]
        return self.openapi_schema or {}


def operation(call: Call) -> dict[str, Any]:
    """What FastAPI cannot know of a call."""
    about: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.path.split("/")[1]],
        "description": f"For a {call.role} or higher.",
        "parameters": [*_path_parameters(call), *_query_parameters(call)],
        "responses": answers(call.answer),
    }
    if call.body is not None:
        content = _json(call.body) | ({"application/yaml": {"schema": {"type": "string"}}} if call.takes_yaml else {})
        about["requestBody"] = {"required": not call.optional_body, "content": content}
    return about


def answers(kind: type[msgspec.Struct]) -> dict[str, Any]:
    refusals = {status: {"description": text, "content": _json(RefusalAnswer)} for status, text in REFUSALS.items()}
    return {"200": {"description": "Done", "content": _json(kind)}, **refusals}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFS.format(name=kind.__name__)}}}


def _path_parameters(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "name": part,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "|".join(f"^{pattern.pattern}$" for pattern in PARTS[part])},
        }
        for part in re.findall(r"{(\w+)}", call.path)
    ]


def _query_parameters(call: Call) -> list[dict[str, Any]]:
    if call.query is None:
        return []
    fields: dict[str, Any] = _properties(call.query)
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in fields.items()]


def _properties(kind: type[Message]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([kind])
    return {name: _without_null(schema) for name, schema in dict(components[kind.__name__]["properties"]).items()}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not given is left out; it is never the word null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in {"anyOf", "default"} or value is not None}
    rest.pop("anyOf", None)
    if "enum" in rest:
        rest["enum"] = [value for value in rest["enum"] if value is not None]
    return rest | (kinds[0] if len(kinds) == 1 else {})
