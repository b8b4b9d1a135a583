"""How a dataset stands as a whole: its last commit, who writes it, and what keeps it from going on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracelake.wire.user_messages import DatasetDetail, Explanation, Step, Stop

Row = Mapping[str, Any]
TROUBLE = ("failed", "waits for a retry", "queued")
"""States of tasks that a person wants to know of, the worst first."""
TIME = "%Y-%m-%d %H:%M:%S %Z"


def dataset_summary(found: DatasetDetail, writers: Sequence[Row], event: Row | None) -> Explanation:
    """`writers`: the active jobs that write it, with a row for each state of their tasks that have not ended well."""
    subject = found.name or str(found.dataset_uuid)
    stopped = _stop(found, writers, event)
    told = [_standing(found, event), *(_tasks(row) for row in writers if row["state"])]
    if stopped is not None and stopped.rule not in {"failed_for_good", "waits_for_retry", "queued"}:
        told.append(stopped.sentence)
    return Explanation(subject=subject, verdict=" ".join(told), steps=list(_steps(found, writers)), stopped=stopped)


def _standing(found: DatasetDetail, event: Row | None) -> str:
    if found.last_commit is None and event is not None:
        return f"It has no rows; its last event, of {event['scope']}, came {event['created_at']:{TIME}}."
    if found.last_commit is None:
        return "It has no rows yet."
    current = next((generation for generation in found.generations if generation.current), None)
    what = ""
    if current is not None and current.partitions:
        what = f": {current.partitions:,} partitions, {current.rows or 0:,} rows"
    at = f", made {found.committed_at:{TIME}}" if found.committed_at else ""
    return f"It stands at commit {found.last_commit}{at}{what}."


def _tasks(row: Row) -> str:
    count, name = row["tasks"], f"{row['dag']}.{row['job']}"
    noun, waits = ("task", "waits") if count == 1 else ("tasks", "wait")
    if row["state"] == "failed":
        return f"{count:,} {noun} of {name} failed for good."
    if row["state"] == "waits for a retry":
        return f"{count:,} {noun} of {name} failed and {waits} for a retry."
    return f"{count:,} {noun} of {name} {'is' if count == 1 else 'are'} {row['state']}."


def _steps(found: DatasetDetail, writers: Sequence[Row]) -> Iterator[Step]:
    """The newest commits, and the newest task of each state: where to look next."""
    for commit in reversed(found.commits[:3]):
        rows = f" with {commit.rows:,} rows" if commit.rows is not None else ""
        sentence = f"Commit {commit.commit}{rows}, of {commit.scope}, by task {commit.task_id}."
        yield Step(kind="commit", at=commit.committed_at, id=f"{found.dataset_uuid}:{commit.commit}", sentence=sentence)
    for row in writers:
        if row["state"]:
            error = f": {row['error']}" if row["error"] and row["state"] in TROUBLE[:2] else ""
            how = row["state"] if row["state"] in TROUBLE[:2] else f"is {row['state']}"
            sentence = f"The newest task of {row['dag']}.{row['job']} that {how}: {row['newest']}{error}."
            yield Step(kind="task", at=row["since"], id=str(row["newest"]), sentence=sentence)


def _stop(found: DatasetDetail, writers: Sequence[Row], event: Row | None) -> Stop | None:
    if not writers:
        return Stop(
            rule="not_active",
            sentence=f"No active version of DAG {found.dag} writes it, so nothing new comes.",
            hint=f"`trace dag show {found.dag}`",
        )
    if held := next((row for row in writers if row["paused"]), None):
        name = f"{held['dag']}.{held['job']}"
        hint = f"`trace source resume {held['dag']} {held['job']}`"
        return Stop(rule="paused", sentence=f"{name} is paused.", hint=hint)
    for state, rule in zip(TROUBLE, ("failed_for_good", "waits_for_retry", "queued"), strict=True):
        if row := next((row for row in writers if row["state"] == state), None):
            sentence = f"{_tasks(row)} The newest: {row['newest']}."
            return Stop(rule=rule, sentence=sentence, since=row["since"], hint=f"`trace why {row['newest']}`")
    if found.last_commit is None and event is None and not any(row["state"] for row in writers):
        return _nothing_yet(writers[0])
    return None


def _nothing_yet(writer: Row) -> Stop:
    name = f"{writer['dag']}.{writer['job']}"
    if writer["source"] == "manual":
        hint = f"`trace trigger {writer['dag']} {writer['job']}`"
        return Stop(rule="source_has_not_made_it", sentence=f"{name} is a manual source.", hint=hint)
    if writer["activation"] == "source":
        return Stop(rule="source_has_not_made_it", sentence=f"{name} is a source, and has made nothing yet.")
    inputs = writer["inputs"] or []
    return Stop(
        rule="no_event",
        sentence=f"{name} has had no task: no event has come from what it reads ({', '.join(inputs)}).",
        hint=" or ".join(f"`trace why {item}`" for item in inputs[:3]),
    )
