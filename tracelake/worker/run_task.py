"""Step 8 of one event: the operator runs in a thread of its own, in the process's one Spark session.

Whatever it does ends as a completion: its outputs with their marker and their events, or its error.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from pydantic import BaseModel, SecretStr

from tracelake.capability.claims import decode
from tracelake.capability.jws import take_apart
from tracelake.errors import DatabaseUnavailable, InvalidRequest, SnapshotTooOld, TraceError, Unavailable
from tracelake.operators.api.context import Resources, TaskApi, TaskContext
from tracelake.operators.api.outcome import AfterCommit, Outcome
from tracelake.operators.registry import IN_PROCESS, WORKER_OPERATORS
from tracelake.ports import ObjectStore
from tracelake.runtime.redact import Redact
from tracelake.spark.session import is_lost
from tracelake.spark.tags import interrupt, tagged
from tracelake.wire.task_messages import Claimed, CompleteRequest, Progress, TaskPayload
from tracelake.worker.job_secrets import secrets_of_job
from tracelake.worker.wait_for_data import is_outage, wait_for_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

MAX_ERROR_CHARS = 10_000


@dataclass(frozen=True)
class Finished:
    request: CompleteRequest
    after_commit: AfterCommit | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


class RunsTasks(Protocol):
    """What a wrapper runs its tasks with."""

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        """All of it, in a thread of its own; an error of the task's is a completion too."""
        ...

    def cancel(self, claimed: Claimed) -> None:
        """End it at once: its lease is lost. May be called again until it has ended."""
        ...


def run_pure(task: TaskPayload) -> Outcome:
    """An operator without rows."""
    return IN_PROCESS[task.operator].run(task, task.state)


@dataclass(frozen=True)
class Runner:
    """Runs tasks. `spark` is None where only operators that need none are wanted."""

    objects: ObjectStore
    resources: Resources
    spark: SparkSession | None = None
    pure: Callable[[TaskPayload], Outcome] = run_pure
    spark_lost: threading.Event = field(default_factory=threading.Event)
    """Set when Spark was found to be gone: no task can be run here any more."""
    hide: Redact = str
    """Takes out what must not be told of a failure, or of how far a task is."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """All that this worker has, by name in small letters; a task is handed those that its job names."""

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        """The operator's outcome as a completion; an error of its own is a failure of the task, never of the worker.

        When Spark is gone it is the other way round: nothing is reported, and the task is run again elsewhere.
        """
        fence: dict[str, Any] = {
            "task_id": claimed.task.task_id,
            "attempt": claimed.attempt,
            "lease_token": claimed.lease_token,
        }
        try:
            with self._tagged(claimed):
                return self._outcome(claimed, api, fence)
        except TraceError as wrong:
            self._refuse_if_spark_is_lost(wrong)
            # Cut after it was hidden: half a secret would no longer be known.
            said = self.hide(f"{wrong.message} ({wrong.hint})" if wrong.hint else wrong.message)[:MAX_ERROR_CHARS]
            log.warning("task failed", code=wrong.code, because=said, where=wrong.where)
            code = self._code(wrong, api, wrong.code)
            # The next attempt reads as of a later commit.
            again = wrong.retryable or isinstance(wrong, SnapshotTooOld)
            return Finished(
                CompleteRequest(**fence, status="Failed", error_message=said, retryable=again, error_code=code)
            )
        except Exception as wrong:
            self._refuse_if_spark_is_lost(wrong)
            log.exception("task failed")
            said = self.hide(traceback.format_exc())[-MAX_ERROR_CHARS:]
            code = self._code(wrong, api, TraceError.code)
            return Finished(CompleteRequest(**fence, status="Failed", error_message=said, error_code=code))

    def _code(self, wrong: Exception, api: TaskApi, otherwise: str) -> str:
        """What the failure is called: one that an outage of the data database explains is that outage."""
        was_away = wait_for_data(self.resources.data_dsn, api)
        return DatabaseUnavailable.code if was_away or is_outage(wrong) else otherwise

    def cancel(self, claimed: Claimed) -> None:
        """End its Spark jobs at once."""
        if self.spark is not None:
            interrupt(self.spark, tag_of(claimed))

    def _refuse_if_spark_is_lost(self, wrong: Exception) -> None:
        if self.spark is not None and is_lost(self.spark, wrong):
            self.spark_lost.set()
            raise Unavailable("Spark has ended under this task") from wrong

    def _outcome(self, claimed: Claimed, api: TaskApi, fence: dict[str, Any]) -> Finished:
        task = claimed.task
        if task.operator in IN_PROCESS:
            return Finished(_completed(fence, self.pure(task)))
        context = self._context(claimed, api)
        outcome = WORKER_OPERATORS[task.operator].run(context) or Outcome()
        outputs = [body for output in context.outputs for body in output.finish()]
        events = [event for output in context.outputs for event in output.events()]
        request = _completed(fence, outcome, outputs=outputs, events=[*events, *outcome.events])
        return Finished(request, outcome.after_commit, outcome.left_out)

    def _context(self, claimed: Claimed, api: TaskApi) -> TaskContext[Any]:
        task = claimed.task
        operator = WORKER_OPERATORS.get(task.operator)
        if operator is None:
            raise InvalidRequest(f"this worker has no operator {task.operator!r}", where="/operator")
        config: BaseModel = operator.config.model_validate(dict(task.config))
        org_id = decode(take_apart(claimed.capability_token).payload).org_id
        # An operator without a use for them may be of a DAG that was deployed before that was refused.
        named = (task.secrets or ()) if operator.spec.takes_secrets else ()
        secrets = secrets_of_job(named, self.secrets)
        return TaskContext(task, org_id, config, self.spark, self.objects, api, self.resources, secrets, self.hide)

    @contextmanager
    def _tagged(self, claimed: Claimed) -> Iterator[None]:
        """Everything that this thread asks of Spark carries the task's tag, by which it can be ended."""
        if self.spark is None:
            yield
            return
        with tagged(self.spark, tag_of(claimed)):
            yield


def tag_of(claimed: Claimed) -> str:
    return f"task-{claimed.task.task_id}-{claimed.attempt}"


def _completed(fence: dict[str, Any], outcome: Outcome, **more: Any) -> CompleteRequest:
    values = {"events": list(outcome.events), **more}
    return CompleteRequest(
        **fence,
        status="Completed",
        invalidations=list(outcome.invalidations),
        state=outcome.state,
        progress=_last_word(outcome),
        **values,
    )


def _last_word(outcome: Outcome) -> Progress | None:
    left_out = ", ".join(f"{count} {reason}" for reason, count in outcome.left_out.items() if count)
    said = "; ".join(filter(None, (outcome.message, f"left out: {left_out}" if left_out else "")))
    return Progress(message=said) if said else None
