"""`trace task`: list, show, retry and cancel tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.cli.options import Home, Json, Yes
from tracelake.cli.task_ids import TaskId, find_task
from tracelake.domain.task import TaskState

if TYPE_CHECKING:
    from tracelake.wire.user.tasks import TaskDetail, TaskRow

app = typer.Typer(help="Tasks: list, show, logs, retry, cancel.", no_args_is_help=True)


OfStatus = Annotated[TaskState | None, typer.Option("--status", help="Only those in this state.", case_sensitive=False)]
OfDag = Annotated[str | None, typer.Option("--dag", help="Only those of this DAG.", metavar="DAG")]
OfJob = Annotated[str | None, typer.Option("--job", help="Only those of this job.", metavar="JOB")]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[
    UUID | None, typer.Option("--before", help="Continue after this task of the last page.", metavar="TASK")
]
OfAttempt = Annotated[int | None, typer.Option("--attempt", help="The attempt; default: the last.", metavar="N", min=1)]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the attempt ends.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, which is stored with the task.", metavar="TEXT")]


OptionalTask = Annotated[
    str | None,
    typer.Argument(help="Its id, or the beginning of it; without one: all that the options name.", metavar="[TASK]"),
]

FOLLOW_SECONDS = 0.5
LEVELS = {"debug": "dim", "warning": "yellow", "error": "red"}


@app.command("list")
def list_(
    *,
    status: OfStatus = None,
    dag: OfDag = None,
    job: OfJob = None,
    limit: Limit = 50,
    before: Before = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """List tasks, the newest first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.tasks import TaskList

    filters = {"status": status and status.value, "dag": dag, "job": job, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.call("list_tasks", TaskList, query=filters)
    if json:
        render.as_json(found)
        return
    if not found.tasks:
        filtered = status or dag or job or before
        render.note("no such task" if filtered else "no tasks yet; `trace trigger DAG JOB` starts a manual source")
        return
    render.table(
        ("id", "job", "status", "attempt", "made", "for", "reason"),
        [
            (
                task.id,
                f"{task.dag}.{task.job}",
                task.status,
                _counted(task),
                task.created_at,
                task.partitions,
                render.first_line(
                    task.reason or (f"{task.dead_batches} of its batches dead" if task.dead_batches else None)
                ),
            )
            for task in found.tasks
        ],
    )
    if any(task.reason != render.first_line(task.reason) for task in found.tasks):
        render.note("reasons that end in ... are shortened: `trace task show ID` shows all of it")
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("show", short_help="Show a task: its cause, attempts, reads and commits.")
def show(task: TaskId, home: Home = None, json: Json = False) -> None:
    """Show a task: its cause, its attempts, what it read and what it committed."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.tasks import TaskDetail

    with remote(home) as gateway:
        found = gateway.call("show_task", TaskDetail, task=find_task(gateway, task))
    if json:
        render.as_json(found)
    else:
        _show(found)


@app.command("logs")
def logs(
    task: TaskId, *, attempt: OfAttempt = None, follow: Follow = False, home: Home = None, json: Json = False
) -> None:
    """Show the log of a task. An attempt stores up to a thousand lines."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.tasks import TaskLines

    with remote(home) as gateway:
        first, task_id = 0, find_task(gateway, task)
        while True:
            found = gateway.call("task_logs", TaskLines, query={"attempt": attempt, "first": first}, task=task_id)
            first += len(found.lines)
            if json:
                render.as_json(found)
            for line in () if json else found.lines:
                render.log_line(f"{render.when(line.at)}  {line.level:<7}  {line.text}", LEVELS.get(line.level, ""))
            if found.ended or not follow:
                break
            attempt = found.attempt
            time.sleep(FOLLOW_SECONDS)
    if not first and not json:
        render.note(f"attempt {found.attempt} has logged nothing{'' if found.ended else ' yet'}")


@app.command("retry", short_help="Give failed tasks one more attempt.")
def retry(
    task: OptionalTask = None,
    *,
    dag: OfDag = None,
    job: OfJob = None,
    yes: Yes = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Give a failed task one more attempt, immediately; or all of a DAG or job that have failed for good."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.many_tasks import change_tasks
    from tracelake.wire.user.tasks import ManyTasksRequest, RetryAnswer

    with remote(home) as gateway:
        if task is None:
            change_tasks(gateway, "retry_tasks", ManyTasksRequest(dag=dag, job=job), "retry", yes=yes, json=json)
            return
        _refuse_both(dag, job)
        task_id = find_task(gateway, task)
        done = gateway.call("retry_task", RetryAnswer, task=task_id)
    render.answer(done, f"attempt {done.attempt} is queued; `trace why {task_id}` follows it", in_json=json)


@app.command("cancel", short_help="Cancel tasks that have not ended.")
def cancel(
    task: OptionalTask = None,
    *,
    reason: Reason = "canceled manually",
    dag: OfDag = None,
    job: OfJob = None,
    status: OfStatus = None,
    yes: Yes = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Cancel a task that has not ended, or all of a DAG, of a job or in a state.

    If it runs, its worker is notified, and it cannot commit. Sources are not canceled with others: `trace source pause`
    stops one.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.many_tasks import change_tasks
    from tracelake.wire.user.tasks import CancelAnswer, CancelManyRequest, CancelRequest

    with remote(home) as gateway:
        if task is None:
            many = CancelManyRequest(dag=dag, job=job, status=status.value if status else None, reason=reason)
            change_tasks(gateway, "cancel_tasks", many, "cancel", yes=yes, json=json)
            return
        _refuse_both(dag, job, status)
        done = gateway.call(
            "cancel_task", CancelAnswer, body=CancelRequest(reason=reason), task=find_task(gateway, task)
        )
    render.answer(done, "canceled" if done.changed else "it was canceled already", in_json=json)


def _refuse_both(*filters: object) -> None:
    from tracelake.errors import BadInput

    if any(filters):
        raise BadInput("give a task, or --dag, --job and --status, not both", where="TASK")


def _counted(task_row: TaskRow) -> str:
    """`2/3`, with platform failures, which do not count: `2/3 +4`."""
    lost = task_row.platform_failures
    counted = max(1, task_row.attempt - task_row.skipped_attempts - lost)
    return f"{counted}/{task_row.max_attempts}" + (f" +{lost}" if lost else "")


def _progress(found: TaskDetail) -> str | None:
    """`120 of 500 (24 %): fetching logs`, or as much of it as the task reported."""
    progress = found.progress
    if progress is None:
        return None
    parts = [] if progress.done is None else [f"{progress.done:,}"]
    if progress.total is not None:
        share = f" ({100 * progress.done // progress.total} %)" if progress.done is not None and progress.total else ""
        parts.append(f"of {progress.total:,}{share}")
    count = " ".join(parts)
    return ": ".join(part for part in (count, progress.message) if part) or None


def _show(found: TaskDetail) -> None:
    from tracelake.cli import render
    from tracelake.cli.dead_batches import show_dead_batches

    event, gone = found.event, found.invalidation
    counted = max(1, found.attempt - found.skipped_attempts - found.platform_failures)
    render.pairs(
        [
            ("task", found.id),
            ("job", f"{found.dag}.{found.job} ({found.operator} on {found.runtime})"),
            ("status", found.status),
            ("attempt", found.attempt),
            ("counted attempts", f"{counted} of {found.max_attempts}"),
            ("platform failures", f"{found.platform_failures} of {found.max_platform_failures}"),
            ("fault", found.fault),
            ("for", found.partitions),
            ("error", found.error),
            ("canceled", found.cancel_reason),
            ("files of task", found.memoized_from),
            ("next try", found.next_retry_at),
            ("made", found.created_at),
            ("ended", found.completed_at),
            ("worker", found.worker),
            ("progress", _progress(found)),
            ("lease until", found.lease_expires_at),
            ("requests to nodes", found.node_requests or None),
            ("bytes written", found.bytes_written or None),
            ("batches", _batches(found)),
            ("from event", event and f"{event.dataset} {event.scope}, {render.when(event.created_at)} ({event.id})"),
            ("from invalidation", gone and f"{gone.dataset} {gone.scope}: {gone.reason} ({gone.id})"),
        ]
    )
    if found.attempts:
        render.title("attempts")
        render.table(
            ("attempt", "worker", "started", "ended", "outcome", "fault", "error"),
            [
                (a.attempt, a.worker, a.started_at, a.ended_at, a.outcome or "Running", a.fault, a.error)
                for a in found.attempts
            ],
        )
    if found.inputs:
        render.title("read")
        render.table(
            ("attempt", "dataset", "part", "commit"),
            [(item.attempt, item.dataset, item.partition or "all", item.commit) for item in found.inputs],
        )
    if found.commits:
        render.title("committed")
        render.table(
            ("dataset", "commit", "rows", "bytes", "at"),
            [
                (commit.dataset, commit.commit, commit.rows, commit.bytes, commit.committed_at)
                for commit in found.commits
            ],
        )
    show_dead_batches(found.dead_batches, found.batches.dead)


def _batches(found: TaskDetail) -> str | None:
    counts = {"committed": found.batches.committed, "waiting": found.batches.accepted, "dead": found.batches.dead}
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or None
