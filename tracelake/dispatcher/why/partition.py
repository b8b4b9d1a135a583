"""Explains why a partition does not exist: the rule that stopped the events about it, or that there was none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from tracelake.dispatcher.flow.list_pauses import how_it_resumes, pause_sentence
from tracelake.dispatcher.why.event import StoredEvent, refused, unrouted
from tracelake.store.queries import Row
from tracelake.wire.user.why import Explanation, Step, Stop


class InputEvent(StoredEvent, frozen=True):
    dataset: str
    held_at: datetime | None
    pause_reason: str | None
    paused_since: datetime | None
    pause_cause: str | None
    pause_limit: float | None
    pause_observed: float | None


class Producer(Row, frozen=True):
    dag: str
    job: str | None
    active: bool
    activation: str | None
    source: str | None
    inputs: list[str] | None

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job}"


def nothing_made(subject: str, partition: str, producer: Producer, events: Sequence[InputEvent]) -> Explanation:
    """No task was created for it. `events`: those about it among the producer's inputs, the newest first."""
    stopped = _stop(partition, producer, events)
    steps = [_step(event, partition) for event in reversed(events)]
    return Explanation(subject=subject, verdict=stopped.sentence, steps=steps, stopped=stopped)


def not_written(chain: Explanation, partition: str) -> Explanation:
    """There is a task for it, and no current partition: what stopped the task, or that the task did not write it."""
    if chain.stopped is not None:
        return chain
    sentence = f"The task for {partition} completed, and nothing that it wrote is current there."
    return msgspec.structs.replace(chain, verdict=sentence, stopped=Stop(rule="not_written", sentence=sentence))


def missing_ranges(chain: Explanation, partition: str, parts: int) -> Explanation:
    """The job has tasks over parts of it: what stopped one of them, or that the parts are not complete yet."""
    if chain.stopped is not None:
        sentence = f"{partition} is made from parts, and one of them is not done. {chain.stopped.sentence}"
        return msgspec.structs.replace(chain, verdict=sentence)
    sentence = f"{partition} is made from parts; {parts} that touch it are done, and none sent an event about it."
    return msgspec.structs.replace(chain, verdict=sentence, stopped=Stop(rule="missing_ranges", sentence=sentence))


def _step(event: InputEvent, partition: str) -> Step:
    sentence = f"{event.dataset} had an event about {partition}."
    return Step(kind="event", at=event.created_at, id=str(event.id), sentence=sentence)


def _stop(partition: str, producer: Producer, events: Sequence[InputEvent]) -> Stop:
    if not producer.active:
        return Stop(
            rule="not_active",
            sentence=f"No version of DAG {producer.dag} is active, so {producer.name} gets no tasks.",
            hint=f"`trace dag activate {producer.dag} VERSION`",
        )
    if producer.activation is None:
        sentence = f"The active version of DAG {producer.dag} has no job {producer.job} any more."
        return Stop(rule="no_live_edge", sentence=sentence)
    if producer.activation == "source":
        return _source(partition, producer)
    if not events:
        inputs = producer.inputs or []
        return Stop(
            rule="no_event",
            sentence=f"No input of {producer.name} ({', '.join(inputs)}) had an event about {partition}.",
            hint=" or ".join(f"`trace why {name} {partition}`" for name in inputs[:3]),
        )
    return _event(producer, events[0])


def _source(partition: str, producer: Producer) -> Stop:
    manual = producer.source == "manual"
    hint = f"`trace trigger {producer.dag} {producer.job} --partition {partition}`" if manual else None
    sentence = f"{producer.name} is a source ({producer.source}), and has not made {partition}."
    return Stop(rule="source_has_not_made_it", sentence=sentence, hint=hint)


def _event(producer: Producer, event: InputEvent) -> Stop:
    if stop := refused(event):
        return stop
    if event.held_at is not None:
        return _held(producer, event)
    if stop := unrouted(event):
        return stop
    sentence = f"The event was routed while no active version of {producer.name} read {event.dataset}."
    return Stop(rule="no_live_edge", sentence=sentence, since=event.routed_at)


def _held(producer: Producer, event: InputEvent) -> Stop:
    name = producer.name
    if event.pause_reason is None:
        sentence = f"The event waits for those before it: {name} was paused, and is given its tasks in order."
        return Stop(rule="held", sentence=sentence, since=event.held_at)
    why = pause_sentence(event.pause_reason, event.pause_cause, event.pause_limit, event.pause_observed)
    hint = how_it_resumes(name, event.pause_cause)
    return Stop(rule="paused", sentence=f"The event waits: {name} is {why}.", since=event.paused_since, hint=hint)
