"""Calls that are answered when something has changed: a caller names the mark of the last answer, and waits."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracelake.dispatcher.tasks.stop_signals import Stops
from tracelake.errors import InvalidRequest
from tracelake.runtime.listeners import cancel_on_disconnect, json_response
from tracelake.wire.internal.changes import CHANGES_SECONDS, ChangesAnswer
from tracelake.wire.task.lifecycle import STOPS_MARK


def changes_route(path: str, signal: Stops) -> Route:
    """Answers when the signal is notified after the mark in `after`, or after `seconds`."""

    async def changes(request: Request) -> Response:
        answer = await cancel_on_disconnect(request, signal.after(read_mark(request), _seconds(request)))
        return json_response(ChangesAnswer(mark=answer.mark, changed=answer.changed))

    return Route(path, changes, methods=["GET"])


def read_mark(request: Request) -> str:
    """The mark to wait after; a value that no Dispatcher gave out is refused."""
    mark = request.query_params.get("after", "")
    if mark and re.fullmatch(STOPS_MARK, mark) is None:
        hint = "send the `mark` of the last answer, or none"
        raise InvalidRequest("this is not the mark of an answer", where="query after", hint=hint)
    return mark


def _seconds(request: Request) -> float:
    """How long to wait at most; a caller waits no longer than until its next work is due."""
    text = request.query_params.get("seconds", "")
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text) is None:
        raise InvalidRequest(f"{text[:80]!r} is not a number of seconds", where="query seconds")
    return min(float(text), CHANGES_SECONDS)
