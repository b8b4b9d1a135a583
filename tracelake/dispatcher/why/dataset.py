"""Explains the state of a dataset: its last commit, the tasks of its writers, and what stops new rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

from tracelake.dispatcher.flow.list_pauses import how_it_resumes, pause_sentence
from tracelake.domain.text.count_of import count_of
from tracelake.store.queries import Row
from tracelake.wire.user.datasets import DatasetDetail
from tracelake.wire.user.why import Explanation, Step, Stop

TROUBLE = ("failed", "waits for a retry", "queued")
"""States of tasks that hold up a dataset, the worst first."""
TIME = "%Y-%m-%d %H:%M:%S %Z"


class WritingJob(Row, frozen=True):
    """An active job that writes the dataset, with one state of its tasks that have not completed."""

    dag: str
    job: str
    activation: str
    source: str | None
    inputs: list[str] | None
    pause_reason: str | None
    paused_since: datetime | None
    pause_cause: str | None
    pause_limit: float | None
    pause_observed: float | None
    held: int
    state: str | None
    tasks: int
    newest: UUID | None
    since: datetime | None
    error: str | None

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job}"


class LastEvent(Row, frozen=True):
    scope: str
    created_at: datetime


def dataset_summary(dataset: DatasetDetail, writers: Sequence[WritingJob], event: LastEvent | None) -> Explanation:
    subject = dataset.name or str(dataset.dataset_uuid)
    stopped = _stop(dataset, writers, event)
    sentences = [_commit(dataset, event), *(_tasks(writer) for writer in writers if writer.state)]
    if stopped is not None and stopped.rule not in {"failed_for_good", "waits_for_retry", "queued"}:
        sentences.append(stopped.sentence)
    steps = list(_steps(dataset, writers))
    return Explanation(subject=subject, verdict=" ".join(sentences), steps=steps, stopped=stopped)


def _commit(dataset: DatasetDetail, event: LastEvent | None) -> str:
    if dataset.last_commit is None and event is not None:
        return f"It has no rows; its last event, of {event.scope}, came {event.created_at:{TIME}}."
    if dataset.last_commit is None:
        return "It has no rows yet."
    current = next((generation for generation in dataset.generations if generation.current), None)
    contents = ""
    if current is not None and current.partitions:
        contents = f": {count_of(current.partitions, 'partition')}, {count_of(current.rows or 0, 'row')}"
    at = f", made {dataset.committed_at:{TIME}}" if dataset.committed_at else ""
    return f"Its last commit is {dataset.last_commit}{at}{contents}."


def _tasks(writer: WritingJob) -> str:
    count, name = writer.tasks, writer.name
    noun, waits = ("task", "waits") if count == 1 else ("tasks", "wait")
    if writer.state == "failed":
        return f"{count:,} {noun} of {name} failed for good."
    if writer.state == "waits for a retry":
        return f"{count:,} {noun} of {name} failed and {waits} for a retry."
    return f"{count:,} {noun} of {name} {'is' if count == 1 else 'are'} {writer.state}."


def _steps(dataset: DatasetDetail, writers: Sequence[WritingJob]) -> Iterator[Step]:
    """The newest commits, and the newest task of each state."""
    for commit in reversed(dataset.commits[:3]):
        rows = f" with {count_of(commit.rows, 'row')}" if commit.rows is not None else ""
        sentence = f"Commit {commit.commit}{rows}, of {commit.scope}, by task {commit.task_id}."
        yield Step(
            kind="commit", at=commit.committed_at, id=f"{dataset.dataset_uuid}:{commit.commit}", sentence=sentence
        )
    for writer in writers:
        if writer.state:
            error = f": {writer.error}" if writer.error and writer.state in TROUBLE[:2] else ""
            how = writer.state if writer.state in TROUBLE[:2] else f"is {writer.state}"
            sentence = f"The newest task of {writer.name} that {how}: {writer.newest}{error}."
            yield Step(kind="task", at=writer.since, id=str(writer.newest), sentence=sentence)


def _stop(dataset: DatasetDetail, writers: Sequence[WritingJob], event: LastEvent | None) -> Stop | None:
    if not writers:
        return Stop(
            rule="not_active",
            sentence=f"No active version of DAG {dataset.dag} writes it, so nothing new comes.",
            hint=f"`trace dag show {dataset.dag}`",
        )
    if paused := next((writer for writer in writers if writer.pause_reason), None):
        return _paused(paused)
    for state, rule in zip(TROUBLE, ("failed_for_good", "waits_for_retry", "queued"), strict=True):
        if writer := next((writer for writer in writers if writer.state == state), None):
            sentence = f"{_tasks(writer)} The newest: {writer.newest}."
            return Stop(rule=rule, sentence=sentence, since=writer.since, hint=f"`trace why {writer.newest}`")
    if dataset.last_commit is None and event is None and not any(writer.state for writer in writers):
        return _nothing_yet(writers[0])
    return None


def _paused(writer: WritingJob) -> Stop:
    reason = writer.pause_reason or "manual"
    why = pause_sentence(reason, writer.pause_cause, writer.pause_limit, writer.pause_observed)
    waiting = f"; {writer.held:,} {'event waits' if writer.held == 1 else 'events wait'}" if writer.held else ""
    hint = how_it_resumes(writer.name, writer.pause_cause)
    return Stop(rule="paused", sentence=f"{writer.name} is {why}{waiting}.", since=writer.paused_since, hint=hint)


def _nothing_yet(writer: WritingJob) -> Stop:
    if writer.source == "manual":
        hint = f"`trace trigger {writer.dag} {writer.job}`"
        return Stop(rule="source_has_not_made_it", sentence=f"{writer.name} is a manual source.", hint=hint)
    if writer.activation == "source":
        return Stop(rule="source_has_not_made_it", sentence=f"{writer.name} is a source, and has made nothing yet.")
    inputs = writer.inputs or []
    return Stop(
        rule="no_event",
        sentence=f"{writer.name} has had no task: no input of it ({', '.join(inputs)}) had an event.",
        hint=" or ".join(f"`trace why {name}`" for name in inputs[:3]),
    )
