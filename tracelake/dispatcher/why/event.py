"""What became of news that a dataset had of a partition: told to its readers, or the rule that stopped it. Pure.

A dataset whose jobs commit no rows (a source set off by hand, ranges cut or put together) is made of such news alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracelake.wire.user_messages import Explanation, Step, Stop

Row = Mapping[str, Any]


def event_status(
    asked: tuple[str, str], news: Row, readers: Sequence[Row], producer: Explanation | None, queued: Stop | None
) -> Explanation:
    """`asked`: what was asked about, and the dataset's name. `producer`: the chain of the task that told it. `queued`:
    what holds a newer task for the same partition.
    """
    subject, name = asked
    stopped = queued or _stop(name, news, readers)
    steps = [*(producer.steps if producer else ()), _event(name, news), *_readers(name, news, readers)]
    verdict = stopped.sentence if stopped else _verdict(name, news, readers)
    return Explanation(subject=subject, verdict=verdict, steps=steps, stopped=stopped)


def _event(name: str, news: Row) -> Step:
    by = f"task {news['producer_task_id']}" if news["producer_task_id"] else f"a {news['origin']} trigger"
    sentence = f"{name} had news of {news['partition_key']}, told by {by}; it carries no commit."
    return Step(kind="event", at=news["created_at"], id=str(news["id"]), sentence=sentence)


def _readers(name: str, news: Row, readers: Sequence[Row]) -> Iterator[Step]:
    if news["routed_at"] is None:
        return
    for reader in readers:
        narrowed = ", narrowed by its filter" if reader["narrowed"] else ""
        rule = f"{reader['dag']}.{reader['job']} reads {name}{narrowed}"
        if reader["task"] is not None:
            yield Step(kind="rule", at=news["routed_at"], sentence=f"{rule}, so the event made one task for it.")
            sentence = f"That task is {reader['status']}."
            yield Step(kind="task", at=reader["created_at"], id=str(reader["task"]), sentence=sentence)
        elif reader["held_at"] is not None:
            yield Step(kind="rule", at=reader["held_at"], sentence=f"{rule}, and is paused: the event waits.")
        else:
            yield Step(kind="rule", at=news["routed_at"], sentence=f"{rule}; the event was no new work for it.")


def _stop(name: str, news: Row, readers: Sequence[Row]) -> Stop | None:
    at = news["created_at"]
    if news["disposition"] == "AuditOnly":
        sentence = f"The news was kept for the record only: {news['audit_reason']}."
        return Stop(rule="audit_only", sentence=sentence, since=at)
    if news["entry_status"] == "Failed":
        sentence = f"Routing the event was given up: {news['last_error']}."
        return Stop(
            rule="promise_dead", sentence=sentence, since=at, hint=f"`trace outbox retry {news['outbox_entry']}`"
        )
    if news["routed_at"] is None:
        because = f": {news['last_error']}" if news["last_error"] else ""
        return Stop(rule="not_routed_yet", sentence=f"The event is still to be routed{because}.", since=at)
    if not readers:
        sentence = f"{name} has {news['partition_key']}, and no active job reads it: the chain ends here."
        return Stop(rule="no_dependents", sentence=sentence, since=news["routed_at"])
    return None


def _verdict(name: str, news: Row, readers: Sequence[Row]) -> str:
    made = [f"{reader['dag']}.{reader['job']}" for reader in readers if reader["task"] is not None]
    whom = f"a task of {', '.join(made)}" if made else "no new task"
    return f"{name} has {news['partition_key']}, and the news of it made {whom}."
