"""Step 11 of one event: fence, commit outputs, end the attempt, store its events and route them: back to step 5.

All completions take this one path, whatever they carry. Those that arrive together are one batch (`complete_batch.py`);
when it is committed, the wake-ups of new tasks are published (`outbox/wake_ups.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.capability.claims import Claims
from tracelake.dispatcher.outbox.wake_ups import WakeUps
from tracelake.dispatcher.signal import AfterCommit
from tracelake.dispatcher.tasks.completion.complete_batch import BatchOptions, BatchResult, Ended, complete_batch
from tracelake.dispatcher.tasks.completion.completion import Completion, read_completion
from tracelake.dispatcher.tasks.completion.report_failure import FailedAttempt, report_final_failure
from tracelake.dispatcher.tasks.names import TaskNames
from tracelake.domain.task import NEW, TaskState
from tracelake.errors import TraceError
from tracelake.ports import ObjectStore
from tracelake.runtime.coalesce import Coalesced
from tracelake.runtime.crash_points import crash_point
from tracelake.wire.task.outputs import CompleteAnswer, CompleteRequest

Answer = CompleteAnswer | BaseException


@dataclass(frozen=True)
class Announcer:
    """After the commit: publishes wake-ups, notifies the loops that have work now, and counts."""

    wake_ups: WakeUps | None
    after: AfterCommit
    names: TaskNames

    def announce(self, result: BatchResult) -> None:
        if self.wake_ups is not None:
            self.wake_ups.give(result.wake_ups)
        self.after.metrics.moved(NEW, TaskState.QUEUED, result.created)
        moves: Counter[tuple[str, str]] = Counter()
        has_work = result.has_events_to_route or result.created > len(result.wake_ups)
        for ended in result.ended:
            completion, task, unchanged = ended
            if unchanged:
                self.after.metrics.unchanged.labels(str(task.org_id), task.dag_name, task.job_name).inc(unchanged)
            moves[task.status, completion.request.status] += 1
            self.names.forget(completion.request.task_id)
            if completion.events:
                job = str(task.org_id), task.dag_name, task.job_name
                self.after.metrics.events.labels(*job).inc(len(completion.events))
            if completion.ends_as is TaskState.FAILED:
                self._report_failure(ended)
            # A slot came free, invalidations are to be routed, or a final failure may have an alert to send.
            has_work = has_work or task.has_slots or bool(completion.invalidations) or completion.fault is not None
        for (before, after), count in moves.items():
            self.after.metrics.moved(before, after, count)
        if has_work:
            self.after.outbox.notify()

    def _report_failure(self, ended: Ended) -> None:
        """Of an always-on source, only that a retry is due: the loop that keeps sources running starts it again."""
        task, request = ended.task, ended.completion.request
        if task.retry_seconds is not None:
            self.after.leases.due_in(task.retry_seconds)
        elif not task.was_final and not task.restarts:
            subject = task.org_id, task.dag_name, task.job_name, request.task_id, request.attempt
            failure = FailedAttempt(*subject, ended.completion.fault, request.error_message)
            report_final_failure(self.after.metrics, failure)


class Completer:
    """Collects completions into batches."""

    def __init__(
        self, database: asyncpg.Pool, objects: ObjectStore, options: BatchOptions, announcer: Announcer
    ) -> None:
        self.database = database
        self.objects = objects
        self.options = options
        self.announcer = announcer
        self._batches: Coalesced[Completion, CompleteAnswer] = Coalesced(
            self._run, key=_task_of, verb="complete", metrics=announcer.after.metrics
        )

    async def __call__(self, request: CompleteRequest, claims: Claims) -> CompleteAnswer:
        return await self._batches(await read_completion(self.objects, request, claims))

    async def several(self, calls: Sequence[tuple[CompleteRequest, Claims]]) -> list[Answer]:
        """The answer to each, or why it was refused, in order."""
        completions = [await self._read(request, claims) for request, claims in calls]
        accepted = [item for item in completions if isinstance(item, Completion)]
        answers = iter(await self._batches.settled(accepted) if accepted else ())
        return [next(answers) if isinstance(item, Completion) else item for item in completions]

    async def _read(self, request: CompleteRequest, claims: Claims) -> Completion | TraceError:
        try:
            return await read_completion(self.objects, request, claims)
        except TraceError as refusal:
            return refusal

    async def _run(self, batch: Sequence[Completion]) -> list[CompleteAnswer | Exception]:
        crash_point("complete_tasks.before_commit")
        results = await complete_batch(self.database, batch, self.options)
        crash_point("complete_tasks.after_commit")
        for result in results:
            self.announcer.announce(result)
        return [answer for result in results for answer in result.answers]


def _task_of(completion: Completion) -> UUID:
    return completion.request.task_id
