"""Explains a task: the event and rule that created it, its attempts and commits, and what stops it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from tracelake.dispatcher.limits.refuse_if_full import FREE, storage_sentence
from tracelake.domain.text.count_of import count_of
from tracelake.wire.user.datasets import DeadBatchRow
from tracelake.wire.user.tasks import AttemptRow, CommitRow, TaskDetail
from tracelake.wire.user.why import Explanation, Step, Stop


class InputEdge(msgspec.Struct, frozen=True):
    position: int
    live: bool
    where: Any = None


class OutboxEntryState(msgspec.Struct, frozen=True):
    id: int
    status: str
    attempts: int
    available_at: datetime
    last_error: str | None


class Facts(msgspec.Struct, frozen=True):
    """What decides when a task runs, beside the task itself."""

    active: bool
    edge: InputEdge | None
    max_concurrency: int | None
    held: bool
    """It is of a source whose job is paused by pressure."""
    shared_limit: str | None
    """How much of the limits of its operator and runtime is taken."""
    org_limit: str | None
    """How much of the limits of its organisation is taken."""
    stored: int | None
    """How many bytes its organisation stores, if those are as many as it may."""
    most_stored: int | None
    in_flight: int
    ahead: int
    outbox_entry: OutboxEntryState | None


def task_status(task: TaskDetail, facts: Facts, repeated: Sequence[Step]) -> Explanation:
    stopped = _stop(task, facts)
    verdict = stopped.sentence if stopped else f"It is completed, and {_counts(task)}."
    steps = [*_cause(task, facts), *repeated, _created(task), *_attempts(task), *_commits(task)]
    steps += map(_dead_batch, reversed(task.dead_batches))
    return Explanation(subject=f"task {task.id}", verdict=verdict, steps=steps, stopped=stopped)


def _counts(task: TaskDetail) -> str:
    if task.memoized_from is not None:
        return f"did not run: task {task.memoized_from} wrote the same, and its files are used"
    return "what it wrote counts" if task.commits else "it committed nothing"


def concerns(step: Step, dataset: UUID) -> bool:
    """Whether a step belongs to the chain of this dataset: a task may have committed to others too."""
    return step.kind != "commit" or (step.id or "").startswith(str(dataset))


def _cause(task: TaskDetail, facts: Facts) -> Iterator[Step]:
    name = f"{task.dag}.{task.job}"
    if (event := task.event) is not None:
        commit = f" (commit {event.commit})" if event.commit is not None else ""
        origin = f"task {event.producer_task_id}" if event.producer_task_id else f"a {event.origin}"
        sentence = f"{event.dataset} had an event about {event.scope}{commit}, from {origin}."
        yield Step(kind="event", at=event.created_at, id=str(event.id), sentence=sentence)
        rule = f"{name} reads {event.dataset}"
        if facts.edge is not None:
            rule += f" as input {facts.edge.position}"
            rule += ", narrowed by its filter" if facts.edge.where else ""
        sentence = f"{rule}, so the event created a task for it, with the key {task.dedupe_key}."
        yield Step(kind="rule", at=event.routed_at, sentence=sentence)
    elif (invalid := task.invalidation) is not None:
        sentence = f"{invalid.scope} of {invalid.dataset} was invalidated: {invalid.reason}."
        yield Step(kind="invalidation", at=invalid.created_at, id=str(invalid.id), sentence=sentence)
        sentence = f"{name} reads {invalid.dataset}, so it processes that part again."
        yield Step(kind="rule", at=invalid.created_at, sentence=sentence)
    elif task.history:
        sentence = f"{name} had not processed this part of its input, and catches up, with the key {task.dedupe_key}."
        yield Step(kind="rule", at=task.created_at, sentence=sentence)
    else:
        yield Step(kind="rule", at=task.created_at, sentence=f"{name} is a source: {_fired(task.dedupe_key)}.")


def _fired(key: str | None) -> str:
    """What fired a source, by the key of its task."""
    kind, _, what = (key or "").partition(":")
    what = what.partition(":instead:")[0]
    fired = {
        "slot": f"its schedule fired for the slot {what}",
        "delivery": f"delivery {what} to its webhook fired it",
        "fire": f"a user fired it (request {what})",
    }
    return fired.get(kind, "no event created this task")


def _created(task: TaskDetail) -> Step:
    partitions = f" for {', '.join(task.partitions)}" if task.partitions else ""
    return Step(kind="task", at=task.created_at, id=str(task.id), sentence=f"The task was created{partitions}.")


def _attempts(task: TaskDetail) -> Iterator[Step]:
    if task.memoized_from is None:
        yield from map(_attempt, task.attempts)
        return
    sentence = (
        f"Task {task.memoized_from} had read the same content, with the same config and code: nothing ran, and its"
        " files are used."
    )
    yield Step(kind="memo", at=task.completed_at, id=str(task.memoized_from), sentence=sentence)


def _attempt(attempt: AttemptRow) -> Step:
    outcomes = {
        None: "runs now",
        "Completed": "completed",
        "Failed": "failed",
        "TimedOut": "ran out of time",
        "LeaseExpired": "was ended, because its worker sent no heartbeat",
        "Canceled": "was canceled",
    }
    outcome = outcomes.get(attempt.outcome, str(attempt.outcome))
    late = ", and its reply came late" if attempt.late else ""
    error = f": {attempt.error}" if attempt.error else ""
    counts = " (the platform's fault: not counted against max_attempts)" if attempt.fault == "platform" else ""
    sentence = f"Attempt {attempt.attempt} on {attempt.worker} {outcome}{late}{counts}{error}."
    at = attempt.ended_at or attempt.started_at
    return Step(kind="attempt", at=at, id=str(attempt.attempt), sentence=sentence)


def _commits(task: TaskDetail) -> Iterator[Step]:
    for commit in task.commits:
        rows = f" with {count_of(commit.rows, 'row')}" if commit.rows is not None else ""
        sentence = f"{commit.dataset} is at commit {commit.commit}{rows}.{_unchanged(commit)}"
        yield Step(
            kind="commit", at=commit.committed_at, id=f"{commit.dataset_uuid}:{commit.commit}", sentence=sentence
        )


def _unchanged(commit: CommitRow) -> str:
    if not commit.unchanged:
        return ""
    what = "1 partition has" if commit.unchanged == 1 else f"{commit.unchanged} partitions have"
    return f" {what} the same content as before: no reader has anything to do for that."


def _dead_batch(batch: DeadBatchRow) -> Step:
    sentence = f"The sink refused a batch for {_dataset(batch)}{_line(batch)}: {batch.reason}."
    return Step(kind="batch", at=batch.died_at, id=str(batch.publish_id), sentence=sentence)


def _dataset(batch: DeadBatchRow) -> str:
    return batch.dataset or str(batch.dataset_uuid)


def _line(batch: DeadBatchRow) -> str:
    return f", at line {batch.line}" if batch.line is not None else ""


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
    """A completed task may still wait for the sink to apply its batches."""
    counts = task.batches
    total = counts.accepted + counts.committed + counts.dead
    if task.dead_batches:
        newest = task.dead_batches[0]
        return Stop(
            rule="batch_dead",
            sentence=f"It is completed, but the sink refused {counts.dead} of its {total} batches; the newest,"
            f" {newest.publish_id} for {_dataset(newest)}{_line(newest)}: {newest.reason}.",
            since=newest.died_at,
            hint=f"`trace sink replay {newest.publish_id}` once the cause is fixed, or with `--batch FILE`",
        )
    if counts.accepted:
        sentence = f"It is completed, and {counts.accepted} of its {total} batches are on their way to the sink."
        return Stop(rule="waits_for_sink", sentence=sentence, since=task.completed_at)
    return None


def _superseded(task: TaskDetail, later: UUID) -> Stop:
    sentence = (
        f"It was superseded: {task.dag}.{task.job} writes its whole output again for each update, "
        f"and task {later}, queued later, reads everything that this task would have read."
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
    """The last attempt, and the limit that its failure counts against."""
    if task.fault == "platform":
        count = f"platform failure {task.platform_failures} of {task.max_platform_failures}"
        return f"Attempt {task.attempt} ({count}; not counted against max_attempts)"
    own = task.attempt - task.skipped_attempts - task.platform_failures
    more = f"; {task.platform_failures} more ended by the platform's fault" if task.platform_failures else ""
    return f"Attempt {task.attempt} ({own} of {task.max_attempts} that count{more})"


def _running(task: TaskDetail) -> Stop:
    sentence = f"It runs: attempt {task.attempt} on {task.worker}, lease until {task.lease_expires_at:%H:%M:%S %Z}."
    return Stop(rule="running", sentence=sentence, since=task.started_at)


def _queued(task: TaskDetail, facts: Facts) -> Stop:
    since = task.queued_at
    if task.woken_at is None and facts.held:
        sentence = "It waits until a queue downstream of its source is short enough again."
        return Stop(rule="held_by_pressure", sentence=sentence, since=since, hint="`trace job pauses` names the queue")
    if task.woken_at is None and facts.stored is not None and facts.most_stored is not None:
        sentence = f"It waits for the organisation's limit: {storage_sentence(facts.stored, facts.most_stored)}."
        return Stop(rule="storage_full", sentence=sentence, since=since, hint=FREE)
    if task.woken_at is None:
        limits = [f"{facts.in_flight} of {facts.max_concurrency} (scaling.max_concurrency)"] * (
            facts.max_concurrency is not None
        )
        taken = ", ".join([*limits, *filter(None, [facts.shared_limit, facts.org_limit])]) or "those"
        sentence = f"It waits for a slot: {taken} are taken, and {facts.ahead} tasks are before it."
        return Stop(rule="waits_for_slot", sentence=sentence, since=since)
    if (entry := facts.outbox_entry) is not None and entry.status == "Failed":
        return Stop(
            rule="outbox_entry_failed",
            sentence=f"Its wake-up was given up after {entry.attempts} tries: {entry.last_error}.",
            since=since,
            hint=f"`trace outbox retry {entry.id}` tries it again",
        )
    if entry is not None:
        because = f": {entry.last_error}" if entry.last_error else ""
        return Stop(rule="waits_for_wakeup", sentence=f"Its wake-up has not been sent yet{because}.", since=since)
    return Stop(
        rule="waits_for_worker",
        sentence=f"Its wake-up was sent; no worker of runtime {task.runtime} has claimed it yet.",
        since=since,
        hint="`trace status` shows whether a worker runs",
    )
