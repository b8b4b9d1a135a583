"""The user API as OpenAPI, made from the same table and types that the Dispatcher decodes by."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from trace_platform.contracts import UserAnswer
from trace_platform.openapi import schemas
from trace_platform.user_calls import CALLS


class DescribedDoor(FastAPI):
    """A FastAPI application whose bodies and answers are msgspec types."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            kinds = [kind for call in CALLS.values() for kind in (call.answer, call.body) if kind is not None]
            components = document.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas([*kinds, UserAnswer]))
            components["securitySchemes"] = {"user": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
            document["security"] = [{"user": []}]
        return self.openapi_schema or {}
