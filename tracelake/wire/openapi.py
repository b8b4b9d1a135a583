"""OpenAPI documents, made from the msgspec types that bodies are decoded by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from tracelake.wire.calls.user_calls import PARTS, Call
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.service.headers import SERVICE_TOKEN

REFS = "#/components/schemas/{name}"
REFUSALS = {
    "400": "The request is invalid; `where` is the field",
    "401": "No user's token, or an invalid one",
    "403": "The user's role does not allow it",
    "404": "Not found in the user's organisation",
    "409": "It conflicts with the current state",
    "503": "A service does not answer; a retry may help",
}
INTERNAL_SECURITY = {
    "service": {"type": "apiKey", "in": "header", "name": SERVICE_TOKEN},
    "task": {"type": "apiKey", "in": "header", "name": CAPABILITY_HEADER},
}
"""How services and tasks identify themselves; the Gateway's users have bearer tokens."""


class ErrorDetail(msgspec.Struct):
    code: str
    message: str
    where: str | None
    hint: str | None
    retryable: bool


class RefusalAnswer(msgspec.Struct):
    """The error of every API. `code` is stable."""

    error: ErrorDetail


def operation(call: Call) -> dict[str, Any]:
    """A call of the user API."""
    about: dict[str, Any] = {
        "operationId": call.name,
        "tags": [call.path.split("/")[1]],
        "description": f"For a {call.role} or higher.",
        "parameters": [*_path_parameters(call), *query_parameters(call.query)],
        "responses": answers(call.answer),
    }
    if call.body is not None:
        content = as_json(call.body) | ({"application/yaml": {"schema": {"type": "string"}}} if call.takes_yaml else {})
        about["requestBody"] = {"required": not call.optional_body, "content": content}
    elif call.takes_bytes is not None:
        content = {call.takes_bytes: {"schema": {"type": "string", "format": "binary"}}}
        about["requestBody"] = {"required": True, "content": content}
    return about


def answers(kind: type, refusals: Mapping[str, str] = REFUSALS) -> dict[str, Any]:
    errors = {status: {"description": text, "content": as_json(RefusalAnswer)} for status, text in refusals.items()}
    return {"200": {"description": "Done", "content": as_json(kind)}, **errors}


def as_json(kind: Any) -> dict[str, Any]:
    return {"application/json": {"schema": dict(_schema(kind))}}


@cache
def _schema(kind: Any) -> Mapping[str, Any]:
    """Kept: the error of every API is an answer of each call, six times."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REFS)
    return schema


def schemas(kinds: Sequence[Any]) -> dict[str, Any]:
    _, found = msgspec.json.schema_components([*kinds, RefusalAnswer], ref_template=REFS)
    return found


def query_parameters(kind: type | None, required: Sequence[str] = ()) -> list[dict[str, Any]]:
    if kind is None:
        return []
    _, components = msgspec.json.schema_components([kind])
    fields = dict(components[kind.__name__]["properties"])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
        for name, schema in fields.items()
    ]


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


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not given is left out; it is never the word null."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in {"anyOf", "default"} or value is not None}
    rest.pop("anyOf", None)
    if "enum" in rest:
        rest["enum"] = [value for value in rest["enum"] if value is not None]
    return rest | (kinds[0] if len(kinds) == 1 else {})
