"""The decorator that makes a Lambda handler of an author's function: it keeps the lease and reports the end."""

from __future__ import annotations

import functools
import traceback
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, Tuple

from trace_udf.errors import Ended, Final, Refused
from trace_udf.heartbeat import Heartbeat
from trace_udf.task import Task

MOST_ERROR = 20_000
Handler = Callable[[Any, Any], Dict[str, Any]]


def udf(function: Callable[[Task], Any]) -> Handler:
    """`@udf def handler(task): ...`. What it returns goes nowhere; what it raises fails the attempt.

    `raise trace_udf.Final("...")` when another try cannot help.
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
            retryable, told = _judged(wrong)
            task.log.error("%s", told)  # noqa: TRY400 - where it came from is in it, without ourselves
            return task.outcome("Failed", told[:MOST_ERROR], retryable=retryable)


def _complete(task: Task, outcome: Dict[str, Any]) -> Dict[str, Any]:
    """What was accepted: a good end that is refused (an event that cannot be) is a failure with that reason."""
    try:
        task.complete(outcome)
    except Refused as refused:
        if outcome["status"] != "Completed":
            raise
        task.log.error("%s", refused)  # noqa: TRY400 - a door's answer has no place in the author's code
        outcome = task.outcome("Failed", str(refused), retryable=refused.retryable)
        task.complete(outcome)
    return outcome


def _judged(wrong: BaseException) -> Tuple[bool, str]:
    """Whether another try may help, and what is said: the error first, then where it came from."""
    retryable = not isinstance(wrong, Final)
    if isinstance(wrong, Refused):
        retryable = wrong.retryable
    frames = traceback.extract_tb(wrong.__traceback__)[1:]  # without ourselves
    where = "".join(traceback.format_list(frames)).rstrip()
    said = f"{type(wrong).__name__}: {wrong}" if str(wrong) else type(wrong).__name__
    return retryable, (f"{said}\n{where}" if where else said).replace("\0", "?")
