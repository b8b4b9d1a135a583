"""Step 8 of one event: the operator runs in a thread of its own, in the process's one Spark session.

The result is a completion: its outputs with their marker and their events, or its error.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog
from pydantic import BaseModel, SecretStr

from tracelake.capability.claims import decode
from tracelake.capability.jws import parse_token
from tracelake.chain.nodes.limits import call_counter
from tracelake.errors import (
    DatabaseUnavailable,
    DiskFull,
    InvalidRequest,
    SecretsUnavailable,
    SnapshotTooOld,
    TraceError,
    Unavailable,
    WorkFailed,
)
from tracelake.operators.api.context import Resources, Secrets, TaskApi, TaskContext
from tracelake.operators.api.outcome import OnCommit, Outcome
from tracelake.operators.registry import IN_PROCESS, WORKER_OPERATORS
from tracelake.ports import ObjectStore
from tracelake.runtime.disk import NO_SPACE
from tracelake.runtime.redact import Redact, redacting
from tracelake.settings.secrets.jobs import variable_of
from tracelake.spark.session import is_lost
from tracelake.spark.tags import interrupt, tagged
from tracelake.wire.task.lifecycle import Claimed, TaskPayload, TaskProgress
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.wait_for_data import is_outage, wait_for_data

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

MAX_ERROR_CHARS = 10_000


@dataclass(frozen=True)
class Finished:
    request: CompleteRequest
    after_commit: OnCommit | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


class RunsTasks(Protocol):
    """What a wrapper runs its tasks with."""

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        """Runs it in a thread of its own; an error of the task is a completion too."""
        ...

    def cancel(self, claimed: Claimed) -> None:
        """Ends it at once: its lease is lost. May be called again until it has ended."""
        ...


class OpensObjects(Protocol):
    """Opens the object store for a task."""

    def open(self, claimed: Claimed, api: TaskApi) -> AbstractContextManager[ObjectStore]:
        """With the rights of this attempt alone, while it runs."""
        ...


def run_pure(task: TaskPayload) -> Outcome:
    """An operator without rows."""
    return IN_PROCESS[task.operator].run(task, task.state)


@dataclass(frozen=True)
class Runner:
    """Runs tasks. `spark` is None where only operators without it run."""

    objects: ObjectStore
    resources: Resources
    spark: SparkSession | None = None
    pure: Callable[[TaskPayload], Outcome] = run_pure
    spark_lost: threading.Event = field(default_factory=threading.Event)
    """Set when Spark has ended: no task can run here any more."""
    hide: Redact = str
    """Redacts secrets in errors and progress."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """All that this worker has, by name in small letters; a task gets those that its job names."""
    task_keys: OpensObjects | None = None
    """Opens the store with a task's own rights; None: tasks use `objects`."""

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        """The operator's outcome as a completion; an error of its own is a failure of the task, never of the worker.

        If Spark has ended, nothing is reported, and the task is run again elsewhere.
        """
        fence: dict[str, Any] = {
            "task_id": claimed.task.task_id,
            "attempt": claimed.attempt,
            "lease_token": claimed.lease_token,
        }
        call_counter.begin(tag_of(claimed))
        try:
            with redacting(_brought(claimed)):
                finished = self._run(claimed, api, fence)
        finally:
            requests = call_counter.end(tag_of(claimed))
        return replace(finished, request=msgspec.structs.replace(finished.request, requests=requests))

    def _run(self, claimed: Claimed, api: TaskApi, fence: dict[str, Any]) -> Finished:
        try:
            with self._tagged(claimed), self._opened(claimed, api) as objects:
                return self._outcome(claimed, api, fence, objects)
        except TraceError as wrong:
            self._refuse_if_spark_is_lost(wrong)
            # Cut after the redaction: half a secret would not be found.
            error = self.hide(f"{wrong.message} ({wrong.hint})" if wrong.hint else wrong.message)[:MAX_ERROR_CHARS]
            log.warning("task failed", code=wrong.code, because=error, where=wrong.where)
            code = self._code(wrong, api, wrong.code)
            # The next attempt reads as of a later commit.
            again = wrong.retryable or isinstance(wrong, SnapshotTooOld)
            return Finished(
                CompleteRequest(**fence, status="Failed", error_message=error, retryable=again, error_code=code)
            )
        except Exception as wrong:
            self._refuse_if_spark_is_lost(wrong)
            log.exception("task failed")
            error = self.hide(traceback.format_exc())[-MAX_ERROR_CHARS:]
            code = self._code(wrong, api, TraceError.code)
            return Finished(CompleteRequest(**fence, status="Failed", error_message=error, error_code=code))

    def _code(self, wrong: Exception, api: TaskApi, otherwise: str) -> str:
        """The error code; that of an outage if the data database did not answer, or a disk of this worker is full."""
        was_away = wait_for_data(self.resources.data_dsn, api)
        if was_away or is_outage(wrong):
            return DatabaseUnavailable.code
        return DiskFull.code if isinstance(wrong, OSError) and wrong.errno in NO_SPACE else otherwise

    def cancel(self, claimed: Claimed) -> None:
        """End its Spark jobs at once."""
        if self.spark is not None:
            interrupt(self.spark, tag_of(claimed))

    def _refuse_if_spark_is_lost(self, wrong: Exception) -> None:
        if self.spark is not None and is_lost(self.spark, wrong):
            self.spark_lost.set()
            raise Unavailable("Spark has ended under this task") from wrong

    def _outcome(self, claimed: Claimed, api: TaskApi, fence: dict[str, Any], objects: ObjectStore) -> Finished:
        task = claimed.task
        if task.operator in IN_PROCESS:
            return Finished(_completed(fence, self.pure(task)))
        context = self._context(claimed, api, objects)
        outcome = WORKER_OPERATORS[task.operator].run(context) or Outcome()
        outputs = [body for output in context.outputs for body in output.finish()]
        events = [event for output in context.outputs for event in output.events()]
        request = _completed(fence, outcome, outputs=outputs, events=[*events, *outcome.events])
        return Finished(request, outcome.after_commit, outcome.left_out)

    def _context(self, claimed: Claimed, api: TaskApi, objects: ObjectStore) -> TaskContext[Any]:
        task = claimed.task
        operator = WORKER_OPERATORS.get(task.operator)
        if operator is None:
            raise InvalidRequest(f"this worker has no operator {task.operator!r}", where="/operator")
        config: BaseModel = operator.config.model_validate(dict(task.config))
        org_id = decode(parse_token(claimed.capability_token).payload).org_id
        # A DAG that was deployed before this was refused may name secrets for an operator that takes none.
        named = (task.secrets or ()) if operator.spec.takes_secrets else ()
        secrets = secrets_of_job(named, self.secrets, claimed.secret_values or {})
        resources = self._counted(tag_of(claimed))
        return TaskContext(task, org_id, config, self.spark, objects, api, resources, secrets, self.hide)

    def _counted(self, tag: str) -> Resources:
        """Its calls to nodes are counted for this attempt."""
        pools = {name: replace(pool, counted_for=tag) for name, pool in self.resources.rpc_pools.items()}
        return replace(self.resources, rpc_pools=pools)

    def _opened(self, claimed: Claimed, api: TaskApi) -> AbstractContextManager[ObjectStore]:
        return self.task_keys.open(claimed, api) if self.task_keys else nullcontext(self.objects)

    @contextmanager
    def _tagged(self, claimed: Claimed) -> Iterator[None]:
        """Every Spark job of this thread has the task's tag, by which it can be ended."""
        if self.spark is None:
            yield
            return
        with tagged(self.spark, tag_of(claimed)):
            yield


def secrets_of_job(
    names: Sequence[str], known: Mapping[str, SecretStr], stored: Mapping[str, str | None] | None = None
) -> Secrets:
    """The secrets that a job names, and no others: those that its organisation has stored, then those of the settings.

    Both are by name in small letters. Of `stored`, None: no key of the Dispatcher decrypts it.
    """
    values = {name: value.get_secret_value() for name, value in known.items()} | dict(stored or {})
    _refuse_missing([name for name in names if name.lower() not in values])
    found = {name: values[name.lower()] for name in names}
    _refuse_unreadable([name for name, value in found.items() if value is None])
    return Secrets({name: value for name, value in found.items() if value is not None})


def _refuse_missing(names: Sequence[str]) -> None:
    if names:
        raise WorkFailed(
            f"this worker has no secret {', '.join(names)}",
            where="/secrets",
            hint=f"set {', '.join(map(variable_of, names))} in the environment of `trace up`, or of the worker if it is"
            " started by itself, and start it again; or an admin sets it for the organisation with `trace secret set"
            f" {names[0].lower()}`; then retry the task",
        )


def _refuse_unreadable(names: Sequence[str]) -> None:
    if names:
        raise SecretsUnavailable(
            f"the Dispatcher does not have the key that encrypted the secret {', '.join(names)}",
            where="dispatcher.secret_keys",
            hint="add the key to `dispatcher.secret_keys`, or to keys/secrets.key of the home, and start the Dispatcher"
            f" again; if the key is lost, an admin sets the secret again with `trace secret set {names[0].lower()}`",
        )


def _brought(claimed: Claimed) -> Sequence[str]:
    """The values of secrets that came with the claim."""
    return [value for value in (claimed.secret_values or {}).values() if value]


def tag_of(claimed: Claimed) -> str:
    return f"task-{claimed.task.task_id}-{claimed.attempt}"


def _completed(fence: dict[str, Any], outcome: Outcome, **more: Any) -> CompleteRequest:
    values = {"events": list(outcome.events), **more}
    return CompleteRequest(
        **fence,
        status="Completed",
        invalidations=list(outcome.invalidations),
        state=outcome.state,
        progress=_final_progress(outcome),
        **values,
    )


def _final_progress(outcome: Outcome) -> TaskProgress | None:
    left_out = ", ".join(f"{count} {reason}" for reason, count in outcome.left_out.items() if count)
    message = "; ".join(filter(None, (outcome.message, f"left out: {left_out}" if left_out else "")))
    return TaskProgress(message=message) if message else None
