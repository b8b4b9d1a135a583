"""Completions that came in one call: each is authorised by its own token and answered as if it had come alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from tracelake.capability.claims import Claims
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.auth import judged
from tracelake.dispatcher.tasks.completion.complete import Completer
from tracelake.dispatcher.tasks.names import fields
from tracelake.errors import TraceError, Unavailable
from tracelake.runtime.logs import is_debugging, log_fields
from tracelake.store.jobs import StoredJob
from tracelake.wire.task.outputs import CompleteAnswer, CompleteItem, CompleteOutcome, CompleteRequest

log = structlog.get_logger()

COMPLETE: Final = "POST /v1/task/complete"
"""The call that each token must grant."""


async def complete_several(
    control: Control, complete: Completer, verifier: Verifier, items: Sequence[CompleteItem]
) -> list[CompleteOutcome]:
    judgements = [await _judged(verifier, item) for item in items]
    jobs = [control.names.of(item.completion.task_id) for item in items] if is_debugging() else []
    good = [
        (item.completion, claims) for item, claims in zip(items, judgements, strict=True) if isinstance(claims, Claims)
    ]
    answers = iter(await complete.several(good) if good else ())
    outcomes = [_outcome(next(answers) if isinstance(claims, Claims) else claims) for claims in judgements]
    for item, job, outcome in zip(items, jobs, outcomes, strict=True) if jobs else ():
        _log(item.completion, job, outcome)
    return outcomes


async def _judged(verifier: Verifier, item: CompleteItem) -> Claims | TraceError:
    try:
        return await judged(verifier, item.capability_token, item.completion, COMPLETE)
    except Unavailable:
        raise
    except TraceError as refusal:
        return refusal


def _log(request: CompleteRequest, job: StoredJob | None, outcome: CompleteOutcome) -> None:
    """Each line names its own task: the request as a whole has none."""
    if job is not None and outcome.answer is not None:
        with log_fields(**fields(job, request.task_id, request.attempt)):
            log.debug("completed", status=outcome.answer.status)


def _outcome(answer: CompleteAnswer | BaseException) -> CompleteOutcome:
    """What is unavailable is so for all of them: the whole call is refused, and repeated."""
    if isinstance(answer, CompleteAnswer):
        return CompleteOutcome(answer=answer)
    if isinstance(answer, TraceError) and not isinstance(answer, Unavailable):
        return CompleteOutcome(error=answer.as_dict())
    raise answer
