"""Completions that came in one call: each is judged by its own token and answered as if it had come by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trace_platform.capability.claims import Claims
from trace_platform.capability.verifier import Verifier
from trace_platform.contracts import CompleteAnswer, CompleteItem, CompleteOutcome
from trace_platform.dispatcher.complete_task import Completer
from trace_platform.dispatcher.http.auth import judged
from trace_platform.errors import TraceError, Unavailable

COMPLETE: Final = "POST /v1/task/complete"
"""The right that each needs."""


async def complete_several(
    complete: Completer, verifier: Verifier, items: Sequence[CompleteItem]
) -> list[CompleteOutcome]:
    found = [await _judged(verifier, item) for item in items]
    good = [(item.completion, claims) for item, claims in zip(items, found, strict=True) if isinstance(claims, Claims)]
    answers = iter(await complete.several(good) if good else ())
    return [_outcome(next(answers) if isinstance(one, Claims) else one) for one in found]


async def _judged(verifier: Verifier, item: CompleteItem) -> Claims | TraceError:
    try:
        return await judged(verifier, item.capability_token, item.completion, COMPLETE)
    except Unavailable:
        raise
    except TraceError as refusal:
        return refusal


def _outcome(answer: CompleteAnswer | BaseException) -> CompleteOutcome:
    """What is away is away for all of them: the whole call is answered so, and made again."""
    if isinstance(answer, CompleteAnswer):
        return CompleteOutcome(answer=answer)
    if isinstance(answer, TraceError) and not isinstance(answer, Unavailable):
        return CompleteOutcome(error=answer.as_dict())
    raise answer
