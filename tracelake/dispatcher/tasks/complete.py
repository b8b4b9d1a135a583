"""Step 11 of one event: fence, commit outputs, end the attempt, store its events and route them: back to step 5.

All completions take this one path, whatever they carry. Those that arrive together are one batch (`complete_batch.py`);
when it is committed, the wake-ups of new tasks are published (`outbox/wake_ups.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.tasks.complete_batch import BatchOptions, BatchResult, Ended, complete_batch
from tracelake.dispatcher.tasks.completion import Completion, read_completion
from tracelake.dispatcher.tasks.report_failure import report_final_failure
from tracelake.domain.task import NEW, TaskState
from tracelake.errors import TraceError
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.output_messages import CompleteAnswer, CompleteRequest

Answer = CompleteAnswer | BaseException


class Completer:
    """Collects completions into batches."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._batches: Coalesced[Completion, CompleteAnswer] = Coalesced(
            self._run, key=lambda completion: completion.request.task_id, verb="complete", metrics=control.metrics
        )

    async def __call__(self, request: CompleteRequest, claims: Claims) -> CompleteAnswer:
        return await self._batches(await read_completion(self._control.objects, request, claims))

    async def several(self, calls: Sequence[tuple[CompleteRequest, Claims]]) -> list[Answer]:
        """The answer to each, or why it was refused, in order."""
        completions = [await self._read(request, claims) for request, claims in calls]
        accepted = [item for item in completions if isinstance(item, Completion)]
        answers = iter(await self._batches.settled(accepted) if accepted else ())
        return [next(answers) if isinstance(item, Completion) else item for item in completions]

    async def _read(self, request: CompleteRequest, claims: Claims) -> Completion | TraceError:
        try:
            return await read_completion(self._control.objects, request, claims)
        except TraceError as refusal:
            return refusal

    async def _run(self, batch: Sequence[Completion]) -> list[CompleteAnswer | Exception]:
        control = self._control
        crash_point("complete_tasks.before_commit")
        results = await complete_batch(control.hot, batch, batch_options(control))
        crash_point("complete_tasks.after_commit")
        for result in results:
            announce(control, result)
        return [answer for result in results for answer in result.answers]


def batch_options(control: Control) -> BatchOptions:
    routes = control.wake_ups is not None
    return BatchOptions(control.jobs, control.replica, control.failure_alert, routes=routes)


def announce(control: Control, result: BatchResult) -> None:
    """After the commit: publishes wake-ups, notifies the loops that have work now, and counts."""
    if control.wake_ups is not None:
        control.wake_ups.give(result.wake_ups)
    control.metrics.moved(NEW, TaskState.QUEUED, result.created)
    moves: Counter[tuple[str, str]] = Counter()
    has_work = result.has_events_to_route or result.created > len(result.wake_ups)
    for ended in result.ended:
        completion, task = ended
        moves[task["status"], completion.request.status] += 1
        control.names.forget(completion.request.task_id)
        if completion.events:
            control.metrics.events.labels(task["dag_name"], task["job_name"]).inc(len(completion.events))
        if completion.ends_as is TaskState.FAILED:
            _report_failure(control, ended)
        # A slot came free, invalidations are to be routed, or a final failure may have an alert to send.
        has_work = has_work or task["has_slots"] or bool(completion.invalidations) or completion.fault is not None
    for (before, after), count in moves.items():
        control.metrics.moved(before, after, count)
    if has_work:
        control.outbox_signal.notify()


def _report_failure(control: Control, ended: Ended) -> None:
    """Of an always-on source, only that a retry is due: the loop that keeps sources running starts it again."""
    task, request = ended.task, ended.completion.request
    if task["retry_seconds"] is not None:
        control.leases.due_in(task["retry_seconds"])
    elif not task["was_final"] and not task["restarts"]:
        failure = {"org": task["org_id"], "dag": task["dag_name"], "job": task["job_name"]}
        attempt = {"task": request.task_id, "attempt": request.attempt, "fault": ended.completion.fault}
        report_final_failure(control, {**failure, **attempt, "because": request.error_message})
