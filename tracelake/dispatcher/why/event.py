"""Explains what became of a dataset's event: the tasks that it created, or the rule that stopped it. Pure.

A dataset whose jobs commit no rows (a manual source, ranges that are split or joined) consists of such events alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

from tracelake.store.queries import Row
from tracelake.wire.user.why import Explanation, Step, Stop


class StoredEvent(Row, frozen=True):
    """An event and its outbox entry."""

    id: UUID
    created_at: datetime
    disposition: str
    audit_reason: str | None
    routed_at: datetime | None
    outbox_entry: int | None
    entry_status: str | None
    last_error: str | None


class DatasetEvent(StoredEvent, frozen=True):
    partition_key: str
    origin: str
    producer_task_id: UUID | None


class ReadingJob(Row, frozen=True):
    dag: str
    job: str
    narrowed: bool
    held_at: datetime | None
    task: UUID | None
    status: str | None
    created_at: datetime | None


def event_status(
    subjects: tuple[str, str],
    event: DatasetEvent,
    readers: Sequence[ReadingJob],
    producer: Explanation | None,
    queued: Stop | None,
) -> Explanation:
    """`subjects`: the subject of the explanation, and the dataset's name. `producer`: explains the task that sent the
    event. `queued`: what stops a newer task for the same partition.
    """
    subject, name = subjects
    stopped = queued or _stop(name, event, readers)
    steps = [*(producer.steps if producer else ()), _step(name, event), *_readers(name, event, readers)]
    verdict = stopped.sentence if stopped else _verdict(name, event, readers)
    return Explanation(subject=subject, verdict=verdict, steps=steps, stopped=stopped)


def refused(event: StoredEvent) -> Stop | None:
    """Why an event will not be routed, if so."""
    if event.disposition == "AuditOnly":
        sentence = f"The event was only recorded: {event.audit_reason}."
        return Stop(rule="audit_only", sentence=sentence, since=event.created_at)
    if event.entry_status == "Failed":
        sentence = f"Routing the event was given up: {event.last_error}."
        hint = f"`trace outbox retry {event.outbox_entry}`"
        return Stop(rule="outbox_entry_failed", sentence=sentence, since=event.created_at, hint=hint)
    return None


def unrouted(event: StoredEvent) -> Stop | None:
    if event.routed_at is not None:
        return None
    because = f": {event.last_error}" if event.last_error else ""
    return Stop(rule="not_routed_yet", sentence=f"The event has not been routed yet{because}.", since=event.created_at)


def _step(name: str, event: DatasetEvent) -> Step:
    origin = f"task {event.producer_task_id}" if event.producer_task_id else f"a {event.origin} trigger"
    sentence = f"{name} had an event about {event.partition_key}, from {origin}; it carries no commit."
    return Step(kind="event", at=event.created_at, id=str(event.id), sentence=sentence)


def _readers(name: str, event: DatasetEvent, readers: Sequence[ReadingJob]) -> Iterator[Step]:
    if event.routed_at is None:
        return
    for reader in readers:
        narrowed = ", narrowed by its filter" if reader.narrowed else ""
        rule = f"{reader.dag}.{reader.job} reads {name}{narrowed}"
        if reader.task is not None:
            yield Step(kind="rule", at=event.routed_at, sentence=f"{rule}, so the event created a task for it.")
            sentence = f"That task is {reader.status}."
            yield Step(kind="task", at=reader.created_at, id=str(reader.task), sentence=sentence)
        elif reader.held_at is not None:
            yield Step(kind="rule", at=reader.held_at, sentence=f"{rule}, and is paused: the event waits.")
        else:
            yield Step(kind="rule", at=event.routed_at, sentence=f"{rule}; the event was no new work for it.")


def _stop(name: str, event: DatasetEvent, readers: Sequence[ReadingJob]) -> Stop | None:
    if stop := refused(event) or unrouted(event):
        return stop
    if not readers:
        sentence = f"{name} has {event.partition_key}, and no active job reads it: the chain ends here."
        return Stop(rule="no_dependents", sentence=sentence, since=event.routed_at)
    return None


def _verdict(name: str, event: DatasetEvent, readers: Sequence[ReadingJob]) -> str:
    jobs = [f"{reader.dag}.{reader.job}" for reader in readers if reader.task is not None]
    created = f"a task of {', '.join(jobs)}" if jobs else "no new task"
    return f"{name} has {event.partition_key}, and the event about it created {created}."
