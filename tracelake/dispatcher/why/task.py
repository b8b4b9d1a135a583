"""The causal chain of a task as sentences, from what the database knows of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tracelake.wire.user_messages import AttemptRow, DeadBatchRow, Explanation, Step, Stop, TaskDetail


class Edge(msgspec.Struct, frozen=True):
    position: int
    live: bool
    where: Any = None


class Pause(msgspec.Struct, frozen=True):
    reason: str
    since: datetime
    threshold: float | None
    observed: float | None
    cause: str | None


class OutboxEntryState(msgspec.Struct, frozen=True):
    id: int
    status: str
    attempts: int
    available_at: datetime
    last_error: str | None


class Facts(msgspec.Struct, frozen=True):
    """What decides how a task goes on, beside what it is."""

    active: bool
    edge: Edge | None
    max_concurrency: int | None
    in_flight: int
    ahead: int
    pause: Pause | None
    outbox_entry: OutboxEntryState | None


def explained(task: TaskDetail, facts: Facts, repeated: Sequence[Step]) -> Explanation:
    stopped = _stop(task, facts)
    counts = "what it wrote counts" if task.commits else "it committed nothing"
    verdict = stopped.sentence if stopped else f"It is completed, and {counts}."
    steps = [*_cause(task, facts), *repeated, _made(task), *map(_attempt, task.attempts), *_commits(task)]
    steps += map(_dead_batch, reversed(task.dead_batches))
    return Explanation(subject=f"task {task.id}", verdict=verdict, steps=steps, stopped=stopped)


def commit_of(step: Step, dataset: UUID) -> bool:
    """Whether a step belongs into the chain of this dataset: a task may have committed to others too."""
    return step.kind != "commit" or (step.id or "").startswith(str(dataset))


def _cause(task: TaskDetail, facts: Facts) -> Iterator[Step]:
    name = f"{task.dag}.{task.job}"
    if (event := task.event) is not None:
        by = f", from task {event.producer_task_id}" if event.producer_task_id else ""
        commit = f" (commit {event.commit})" if event.commit is not None else ""
        told = f"{event.dataset} had news of {event.scope}{commit}; it came from a {event.origin}{by}."
        yield Step(kind="event", at=event.created_at, id=str(event.id), sentence=told)
        rule = f"{name} reads {event.dataset}"
        if facts.edge is not None:
            rule += f" as input {facts.edge.position}"
            rule += ", narrowed by its filter" if facts.edge.where else ""
        sentence = f"{rule}, so the event made one task for it, by the key {task.dedupe_key}."
        yield Step(kind="rule", at=event.routed_at, sentence=sentence)
    elif (gone := task.invalidation) is not None:
        told = f"{gone.scope} of {gone.dataset} no longer holds: {gone.reason}."
        yield Step(kind="invalidation", at=gone.created_at, id=str(gone.id), sentence=told)
        yield Step(
            kind="rule", at=gone.created_at, sentence=f"{name} reads {gone.dataset}, so it does that part again."
        )
    else:
        yield Step(kind="rule", at=task.created_at, sentence=f"{name} is a source: no event made this task.")


def _made(task: TaskDetail) -> Step:
    of = f" for {', '.join(task.partitions)}" if task.partitions else ""
    return Step(kind="task", at=task.created_at, id=str(task.id), sentence=f"The task was made{of}.")


def _attempt(attempt_row: AttemptRow) -> Step:
    words = {
        None: "runs now",
        "Completed": "completed",
        "Failed": "failed",
        "TimedOut": "ran out of time",
        "LeaseExpired": "was given up, because its worker was not heard",
        "Canceled": "was canceled",
    }
    how = words.get(attempt_row.outcome, str(attempt_row.outcome)) + (
        ", and its reply came late" if attempt_row.late else ""
    )
    error = f": {attempt_row.error}" if attempt_row.error else ""
    counts = " (the platform's fault: not counted against max_attempts)" if attempt_row.fault == "platform" else ""
    sentence = f"Attempt {attempt_row.attempt} on {attempt_row.worker} {how}{counts}{error}."
    return Step(
        kind="attempt",
        at=attempt_row.ended_at or attempt_row.started_at,
        id=str(attempt_row.attempt),
        sentence=sentence,
    )


def _commits(task: TaskDetail) -> Iterator[Step]:
    for item in task.commits:
        rows = f" with {item.rows} rows" if item.rows is not None else ""
        sentence = f"{item.dataset} is at commit {item.commit}{rows}."
        yield Step(kind="commit", at=item.committed_at, id=f"{item.dataset_uuid}:{item.commit}", sentence=sentence)


def _dead_batch(dead_batch_row: DeadBatchRow) -> Step:
    sentence = (
        f"The sink refused a batch for {_dataset(dead_batch_row)}{_place(dead_batch_row)}: {dead_batch_row.reason}."
    )
    return Step(kind="batch", at=dead_batch_row.died_at, id=str(dead_batch_row.publish_id), sentence=sentence)


def _dataset(dead_batch_row: DeadBatchRow) -> str:
    return dead_batch_row.dataset or str(dead_batch_row.dataset_uuid)


def _place(dead_batch_row: DeadBatchRow) -> str:
    return f", at line {dead_batch_row.line}" if dead_batch_row.line is not None else ""


def _stop(task: TaskDetail, facts: Facts) -> Stop | None:
    match task.status:
        case "Completed":
            return _batches(task)
        case "Canceled" if task.superseded_by is not None:
            return _superseded(task, task.superseded_by)
        case "Canceled":
            return Stop(rule="canceled", sentence=f"It was canceled: {task.cancel_reason}.", since=task.completed_at)
        case "Failed":
            return _failed(task)
        case "Running":
            return _running(task)
        case "Queued":
            return _queued(task, facts)


def _batches(task: TaskDetail) -> Stop | None:
    """A task has done its work when its batches are in their tables: that is the sink's part, and follows later."""
    counts = task.batches
    total = counts.accepted + counts.committed + counts.dead
    if task.dead_batches:
        newest = task.dead_batches[0]
        return Stop(
            rule="batch_dead",
            sentence=f"It is completed, but the sink refused {counts.dead} of its {total} batches; the newest,"
            f" {newest.publish_id} for {_dataset(newest)}{_place(newest)}: {newest.reason}.",
            since=newest.died_at,
            hint=f"`trace sink replay {newest.publish_id}` once the cause is mended, or with `--batch FILE`",
        )
    if counts.accepted:
        sentence = f"It is completed, and {counts.accepted} of its {total} batches are on their way to the sink."
        return Stop(rule="waits_for_sink", sentence=sentence, since=task.completed_at)
    return None


def _superseded(task: TaskDetail, later: UUID) -> Stop:
    sentence = (
        f"It was superseded: {task.dag}.{task.job} makes its whole output anew for each update, "
        f"and task {later}, queued later, reads all that this one would have read."
    )
    return Stop(rule="superseded", sentence=sentence, since=task.completed_at, hint=f"`trace why {later}`")


def _failed(task: TaskDetail) -> Stop:
    if task.next_retry_at is not None:
        sentence = (
            f"{_counted(task)} failed ({task.error}); the next one is due at {task.next_retry_at:%Y-%m-%d %H:%M:%S %Z}."
        )
        hint = f"`trace task retry {task.id}` does not wait"
        return Stop(rule="waits_for_retry", sentence=sentence, since=task.completed_at, hint=hint)
    return Stop(
        rule="failed_for_good",
        sentence=f"It failed for good. {_counted(task)} was the last: {task.error}.",
        since=task.completed_at,
        hint=f"`trace task retry {task.id}` gives it one more attempt",
    )


def _counted(task: TaskDetail) -> str:
    """The last attempt, and against which of the two limits its failure counts."""
    if task.fault == "platform":
        count = f"platform failure {task.platform_failures} of {task.max_platform_failures}"
        return f"Attempt {task.attempt} ({count}; not counted against max_attempts)"
    own = task.attempt - task.platform_failures
    more = f"; {task.platform_failures} more ended by the platform's fault" if task.platform_failures else ""
    return f"Attempt {task.attempt} ({own} of {task.max_attempts} that count{more})"


def _running(task: TaskDetail) -> Stop:
    sentence = f"It runs: attempt {task.attempt} on {task.worker}, lease until {task.lease_expires_at:%H:%M:%S %Z}."
    return Stop(rule="running", sentence=sentence, since=task.started_at)


def _queued(task: TaskDetail, facts: Facts) -> Stop:
    since = task.queued_at
    if (pause := facts.pause) is not None:
        return Stop(rule="paused", sentence=pause_sentence(pause.reason, pause.cause), since=pause.since)
    if task.woken_at is None:
        sentence = (
            f"It waits for a slot: {facts.in_flight} of {facts.max_concurrency} (scaling.max_concurrency) are taken, "
            f"and {facts.ahead} tasks are before it."
        )
        return Stop(rule="waits_for_slot", sentence=sentence, since=since)
    if (owed := facts.outbox_entry) is not None and owed.status == "Failed":
        return Stop(
            rule="promise_dead",
            sentence=f"Its wake-up was given up after {owed.attempts} tries: {owed.last_error}.",
            since=since,
            hint=f"`trace outbox retry {owed.id}` tries it again",
        )
    if owed is not None:
        because = f": {owed.last_error}" if owed.last_error else ""
        return Stop(rule="waits_for_wakeup", sentence=f"Its wake-up is still to be sent{because}.", since=since)
    return Stop(
        rule="waits_for_worker",
        sentence=f"Its wake-up was sent; no worker of runtime {task.runtime} has claimed it yet.",
        since=since,
        hint="`trace status` shows whether a worker runs",
    )


def pause_sentence(reason: str, cause: str | None) -> str:
    if reason == "manual":
        return "Its job was paused by hand."
    what = "is too long" if reason == "depth" else "is too old"
    return f"Its job is paused, because the queue of {cause} {what}."
