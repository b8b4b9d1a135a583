"""A completion that comes again: answered as the first time, or refused."""

from __future__ import annotations

import msgspec

from tracelake.errors import Conflict, LeaseLost
from tracelake.wire.output_messages import CompleteAnswer, CompleteRequest


def answered_before(
    status: str, known: bytes | None, answer: str | None, request: CompleteRequest, body: bytes
) -> CompleteAnswer:
    if known == body and answer is not None:
        return msgspec.json.decode(answer, type=CompleteAnswer)
    if known is not None:
        raise Conflict(
            f"this attempt has already been completed, as {status}, with other words",
            where="/status",
            hint="repeat a completion with the same body, or not at all",
        )
    if status == "Canceled" and request.status == "Canceled":
        return CompleteAnswer(status="Canceled")
    raise LeaseLost(f"the attempt is over: the task is {status}", where="/lease_token", hint="stop, report nothing")
