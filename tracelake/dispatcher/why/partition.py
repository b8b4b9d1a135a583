"""Why nothing has been made of a partition: the rule that stopped the news of it, or that there was none. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tracelake.dispatcher.why.task import pause_sentence
from tracelake.wire.user_messages import Explanation, Step, Stop

Row = Mapping[str, Any]


def nothing_made(subject: str, partition: str, producer: Row, news: Sequence[Row]) -> Explanation:
    """No task was ever made for it. `news`: events about it among the inputs of the producing job, newest first."""
    stopped = _stop(partition, producer, news)
    steps = [_step(row, partition) for row in reversed(news)]
    return Explanation(subject=subject, verdict=stopped.sentence, steps=steps, stopped=stopped)


def not_written(chain: Explanation, partition: str) -> Explanation:
    """There is a task for it, and it is not in force: what stopped the task, or that the task left it out."""
    if chain.stopped is not None:
        return chain
    sentence = f"The task that was to make {partition} completed, and nothing that it wrote is in force there."
    return msgspec.structs.replace(chain, verdict=sentence, stopped=Stop(rule="not_written", sentence=sentence))


def missing_ranges(chain: Explanation, partition: str, parts: int) -> Explanation:
    """The job has tasks over parts of it: what stopped one of them, or that the parts do not make the whole yet."""
    if chain.stopped is not None:
        sentence = f"{partition} is made from parts, and one of them is not done. {chain.stopped.sentence}"
        return msgspec.structs.replace(chain, verdict=sentence)
    sentence = f"{partition} is made from parts; {parts} that touch it have been done, and none has told of the whole."
    return msgspec.structs.replace(chain, verdict=sentence, stopped=Stop(rule="missing_ranges", sentence=sentence))


def _step(row: Row, partition: str) -> Step:
    sentence = f"{row['dataset']} had news of {partition}."
    return Step(kind="event", at=row["created_at"], id=str(row["id"]), sentence=sentence)


def _stop(partition: str, producer: Row, news: Sequence[Row]) -> Stop:
    name = f"{producer['dag']}.{producer['job']}"
    if not producer["active"]:
        return Stop(
            rule="not_active",
            sentence=f"No version of DAG {producer['dag']} is active, so {name} gets no tasks.",
            hint=f"`trace dag activate {producer['dag']} VERSION`",
        )
    if producer["activation"] is None:
        sentence = f"The active version of DAG {producer['dag']} has no job {producer['job']} any more."
        return Stop(rule="no_live_edge", sentence=sentence)
    if producer["activation"] == "source":
        return _source(name, partition, producer)
    if not news:
        inputs = producer["inputs"] or []
        return Stop(
            rule="no_event",
            sentence=f"No news of {partition} has come from what {name} reads ({', '.join(inputs)}).",
            hint=" or ".join(f"`trace why {item} {partition}`" for item in inputs[:3]),
        )
    return _event(name, news[0])


def _source(name: str, partition: str, producer: Row) -> Stop:
    hint = (
        f"`trace trigger {producer['dag']} {producer['job']} --partition {partition}`"
        if producer["source"] == "manual"
        else None
    )
    sentence = f"{name} is a source ({producer['source']}), and has not made {partition}."
    return Stop(rule="source_has_not_made_it", sentence=sentence, hint=hint)


def _event(name: str, row: Row) -> Stop:
    at = row["created_at"]
    if row["disposition"] == "AuditOnly":
        sentence = f"The news was kept for the record only: {row['audit_reason']}."
        return Stop(rule="audit_only", sentence=sentence, since=at)
    if row["entry_status"] == "Failed":
        sentence = f"Routing the event was given up: {row['last_error']}."
        return Stop(
            rule="promise_dead", sentence=sentence, since=at, hint=f"`trace outbox retry {row['outbox_entry']}`"
        )
    if row["held_at"] is not None:
        sentence = f"The event waits. {pause_sentence(row['pause_reason'] or 'manual', row['pause_cause'])}"
        return Stop(rule="paused", sentence=sentence, since=row["paused_since"] or row["held_at"])
    if row["routed_at"] is None:
        because = f": {row['last_error']}" if row["last_error"] else ""
        return Stop(rule="not_routed_yet", sentence=f"The event is still to be routed{because}.", since=at)
    sentence = f"The event was routed while no active version of {name} read {row['dataset']}."
    return Stop(rule="no_live_edge", sentence=sentence, since=row["routed_at"])
