"""Forwards calls to webhook sources. Anybody may call: the Dispatcher, which has the secrets, verifies the signature.

Only the body, bounded, and the headers that schemes sign with go on; calls that arrive together go on together
(`runtime/coalesce.py`). What the caller gets back says nothing about sources, names or secrets.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from fastapi import Request, Response

from tracelake.domain.dag.read_source import MOST_BYTES
from tracelake.domain.sources.signatures import HEADERS
from tracelake.errors import BodyTooLarge, InvalidRequest, ServiceUnavailable, TraceError, Unauthenticated
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.listeners import json_response
from tracelake.runtime.read_body import read_bounded
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.sources import MAX_HOOKS, HookAnswer, HookItem, HookOutcome

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")
NOT_ACCEPTED: Final = "the call was not accepted"
LATER: Final = "this cannot be accepted now"
SHOWN: Final = {kind.code: kind for kind in (InvalidRequest, BodyTooLarge)}
"""Refusals whose reason the caller may know: its signature was right, or it sent too much."""


def forward_hook(dispatcher: DispatcherClient) -> Callable[[Request], Awaitable[Response]]:
    send = Coalesced(_sender(dispatcher), key=id, at_once=4, most=MAX_HOOKS)

    async def hook(request: Request) -> Response:
        org, dag, job = (str(request.path_params[name]) for name in ("org", "dag", "job"))
        if not all(NAME.fullmatch(name) for name in (org, dag, job)):
            raise Unauthenticated(NOT_ACCEPTED, where="")
        headers = {name: value for name, value in request.headers.items() if name in HEADERS}
        item = HookItem(org=org, dag=dag, job=job, headers=headers, body=await _body(request))
        return json_response(HookAnswer(delivery_id=_accepted(await send(item))), 202)

    return hook


def _sender(dispatcher: DispatcherClient) -> Callable[[Sequence[HookItem]], Awaitable[Sequence[HookOutcome]]]:
    async def send(items: Sequence[HookItem]) -> Sequence[HookOutcome]:
        """Whatever goes wrong between Gateway and Dispatcher is no affair of the caller, who may try again."""
        try:
            return await dispatcher.hooks(items)
        except TraceError:
            raise ServiceUnavailable(LATER) from None

    return send


async def _body(request: Request) -> bytes:
    try:
        return await read_bounded(request.stream(), MOST_BYTES)
    except InvalidRequest as wrong:
        raise BodyTooLarge(wrong.message, where="") from None


def _accepted(outcome: HookOutcome) -> UUID:
    if outcome.delivery_id is not None:
        return outcome.delivery_id
    if outcome.code == Unauthenticated.code:
        raise Unauthenticated(NOT_ACCEPTED, where="")
    if outcome.code in SHOWN:
        raise SHOWN[outcome.code](outcome.message or "", where="")
    later = ServiceUnavailable(LATER)
    later.retry_after = outcome.retry_after or later.retry_after
    raise later
