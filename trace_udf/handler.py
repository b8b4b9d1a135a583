"""The decorator that makes a Lambda handler of a function: it renews the lease and reports the end."""

from __future__ import annotations

import functools
import traceback
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Optional, Tuple

from trace_udf.errors import Ended, Final, Refused
from trace_udf.heartbeat import Heartbeat
from trace_udf.task import Task

MOST_ERROR = 20_000
MOST_CODE = 100
Handler = Callable[[Any, Any], Dict[str, Any]]


def udf(function: Callable[[Task], Any]) -> Handler:
    """`@udf def handler(task): ...`. Its return value is ignored; an exception fails the attempt.

    `raise trace_udf.Final("...")` when a retry cannot help.
    """

    @functools.wraps(function)
    def handler(event: Any, context: Any = None) -> Dict[str, Any]:
        task = Task(event, context)
        try:
            outcome = _run(function, task)
            if task.completes == "function":
                outcome = _complete(task, outcome)
        except Ended as ended:
            task.log.warning("the attempt is over: %s", ended or type(ended).__name__)
            return {"status": "Canceled", "error_message": str(ended) or type(ended).__name__}
        return outcome

    return handler


def _run(function: Callable[[Task], Any], task: Task) -> Dict[str, Any]:
    keeping: ContextManager[Any] = Heartbeat(task) if task.completes == "function" else nullcontext()
    with keeping:
        try:
            function(task)
            task.flush()
            return task.outcome("Completed")
        except Ended:
            raise
        except (Exception, SystemExit) as wrong:  # noqa: BLE001 - whatever the author's code raises
            retryable, message = _describe(wrong)
            task.log.error("%s", message)  # noqa: TRY400 - the message has the traceback
            return task.outcome("Failed", message[:MOST_ERROR], retryable=retryable, code=_code(wrong))


def _complete(task: Task, outcome: Dict[str, Any]) -> Dict[str, Any]:
    """Reports the end. A completion that is refused (for an invalid event) becomes a failure with that reason."""
    try:
        task.complete(outcome)
    except Refused as refused:
        if outcome["status"] != "Completed":
            raise
        task.log.error("%s", refused)  # noqa: TRY400 - a refusal needs no traceback
        outcome = task.outcome("Failed", str(refused), retryable=refused.retryable, code=_code(refused))
        task.complete(outcome)
    return outcome


def _code(wrong: BaseException) -> Optional[str]:
    """The platform's error code: for its own faults the attempt does not count against `max_attempts`."""
    return wrong.code[:MOST_CODE] if isinstance(wrong, Refused) else None


def _describe(wrong: BaseException) -> Tuple[bool, str]:
    """Whether a retry may help, and the message: the error, then its traceback."""
    retryable = not isinstance(wrong, Final)
    if isinstance(wrong, Refused):
        retryable = wrong.retryable
    frames = traceback.extract_tb(wrong.__traceback__)[1:]  # without the SDK's own frames
    where = "".join(traceback.format_list(frames)).rstrip()
    text = f"{type(wrong).__name__}: {wrong}" if str(wrong) else type(wrong).__name__
    return retryable, (f"{text}\n{where}" if where else text).replace("\0", "?")
