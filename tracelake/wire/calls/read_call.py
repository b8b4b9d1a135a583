"""Reads a call of the user API: role, parameters, body. An error names the place of what is wrong."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from tracelake.errors import Forbidden, InvalidRequest
from tracelake.runtime.read_body import read_bounded
from tracelake.wire.calls.user_calls import ROLES, Call
from tracelake.wire.message import MAX_BODY_BYTES, Message, decode, pointer
from tracelake.wire.user.dags import DeployRequest

M = TypeVar("M", bound=Message)


def require_role(role: str, call: Call) -> None:
    if [str(role) for role in ROLES].index(role) < ROLES.index(call.role):
        raise Forbidden(
            f"a {role} may not do this; it takes a {call.role}",
            where=f"{call.method} /v1{call.path}",
            hint="ask an admin of your organisation for the role",
        )


def require_platform(is_platform_admin: bool, call: Call) -> None:
    if call.platform and not is_platform_admin:
        raise Forbidden(
            "only a platform admin may do this",
            where=f"{call.method} /v1{call.path}",
            hint="ask the admin of the first organisation, whom the first start has created",
        )


def read_query(request: Request, call: Call) -> Message | None:
    items = request.query_params.multi_items()
    for name, _ in items:
        if call.query is None or name not in call.query.__struct_fields__:
            raise InvalidRequest(f"there is no parameter `{name[:80]}` here", where=f"query {name[:80]}")
    values = dict(items)
    if len(values) < len(items):
        raise InvalidRequest("a parameter is given once", where="query")
    if call.query is None:
        return None
    try:
        return msgspec.convert(values, call.query, strict=False)
    except msgspec.ValidationError as wrong:
        message, _, path = str(wrong).partition(" - at `")
        raise InvalidRequest(message, where=f"query {pointer(path.rstrip('`')).lstrip('/')}") from None


async def read_body(request: Request, call: Call) -> Message | None:
    body = await read_bounded(request.stream(), call.most_bytes)
    if call.body is None:
        if body.strip() not in (b"", b"{}"):
            raise InvalidRequest("this call takes no body", where="")
        return None
    if call.takes_yaml and "json" not in request.headers.get("content-type", ""):
        return _yaml(body)
    if call.optional_body and not body.strip():
        return call.body()
    return decode(body, call.body, call.most_bytes)


async def read_message(request: Request, kind: type[M], most: int = MAX_BODY_BYTES) -> M:
    return decode(await read_bounded(request.stream(), most), kind, most)


def _yaml(body: bytes) -> DeployRequest:
    try:
        return DeployRequest(yaml=body.decode())
    except UnicodeDecodeError as wrong:
        raise InvalidRequest(f"the YAML is not UTF-8: {wrong.reason} at byte {wrong.start}", where="") from None
