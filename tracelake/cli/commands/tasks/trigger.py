"""`trace trigger`: start a manual source, and wait for what it causes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated
from uuid import UUID, uuid4

import typer

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.user_dags import TriggerAnswer, TriggerProgress

Dag = Annotated[str, typer.Argument(help="The DAG.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="Its source, of kind `manual`.", metavar="JOB", show_default=False)]
Cursor = Annotated[int | None, typer.Option("--cursor", help="Up to this number.", metavar="N", min=0)]
Partition = Annotated[str | None, typer.Option("--partition", help="One partition.", metavar="KEY")]
Range = Annotated[str | None, typer.Option("--range", help="A range of blocks, both ends included.", metavar="A-B")]
RequestId = Annotated[
    UUID | None,
    typer.Option(
        "--request-id",
        help="A request with an id that was used before does nothing.",
        metavar="UUID",
        show_default="a new one",
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until its tasks have ended; the exit code is 1 if one did not complete.")
]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="With --wait: also for everything that follows from their results.")
]

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 5.0
"""Between two looks at the progress; the pause grows while nothing changes."""


def trigger(
    dag: Dag,
    job: Job,
    *,
    cursor: Cursor = None,
    partition: Partition = None,
    blocks: Range = None,
    request_id: RequestId = None,
    wait: Wait = False,
    downstream: Downstream = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Start a manual source for a cursor, a partition or a range; without any of them, for the whole.

    With --wait, tasks count that an earlier trigger for the same created. Ctrl-C ends the waiting, not the tasks; the
    same command with the --request-id that was printed waits again.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user_dags import TriggerAnswer, TriggerRequest

    if sum(scope is not None for scope in (cursor, partition, blocks)) > 1:
        raise BadInput("give one of --cursor, --partition and --range", where="--cursor, --partition, --range")
    if downstream and not wait:
        raise BadInput("--downstream says what --wait waits for", where="--downstream", hint="give --wait too")
    start, end = parse_partition_key(blocks).edges if blocks else (None, None)
    request = TriggerRequest(cursor=cursor, partition=partition, start=start, end=end, request_id=request_id or uuid4())
    with remote(home) as gateway:
        done = gateway.call("trigger", TriggerAnswer, body=request, dag=dag, job=job)
        if not json:
            _show(f"{dag}.{job}", done)
        progress = _wait(gateway, done.request_id, downstream=downstream, quiet=json) if wait else None
    if json:
        render.as_json(progress or done)
    elif progress is None:
        render.note("  `trace task list` shows the resulting tasks")
    else:
        _show_end(progress)
    if progress is not None and not progress.succeeded:
        raise typer.Exit(1)


def _show(source: str, done: TriggerAnswer) -> None:
    from tracelake.cli import render

    if done.created:
        made = f"task {done.task_id}" if done.task_id else f"{len(done.event_ids)} events for its readers"
        render.note(f"{source} was triggered (request {done.request_id}): {made}")
    else:
        render.note("this request was made before; nothing happened")


def _wait(gateway: Remote, request_id: UUID, *, downstream: bool, quiet: bool) -> TriggerProgress:
    from tracelake.cli import printing
    from tracelake.wire.user_dags import TriggerProgress

    pause, query = FIRST_SECONDS, {"downstream": downstream}
    with printing.waiting("waiting for its tasks", quiet=quiet) as show:
        seen: TriggerProgress | None = None
        while True:
            now = gateway.call("trigger_progress", TriggerProgress, query=query, repeatable=True, request=request_id)
            if now.ended:
                return now
            pause = FIRST_SECONDS if now != seen else min(pause * 1.5, LONGEST_SECONDS)
            seen = now
            show(_in_words(now))
            time.sleep(pause)


def _in_words(progress: TriggerProgress) -> str:
    """`3 of 20 tasks have ended, 2 running; 1 event to be routed`."""
    ended = progress.completed + progress.failed
    words = [f"{ended} of {progress.tasks} tasks have ended, {progress.running} running"]
    words += [f"{progress.failed} failed"] if progress.failed else []
    words += [f"{progress.waiting_events} events to be routed"] if progress.waiting_events else []
    words += [f"{progress.waiting_batches} batches on their way to the sink"] if progress.waiting_batches else []
    return "; ".join(words)


def _show_end(progress: TriggerProgress) -> None:
    from tracelake.cli import render

    if not progress.tasks:
        render.note("no job that is active reads it: it created no task")
    else:
        render.note(f"{progress.completed} of {progress.tasks} tasks completed")
    if progress.failures:
        rows = [(task.id, f"{task.dag}.{task.job}", task.status, task.reason) for task in progress.failures]
        render.table(("id", "job", "status", "reason"), [(*row[:3], render.first_line(row[3])) for row in rows])
        render.note("`trace why ID` explains one, `trace task retry ID` gives it another attempt")
    if progress.failed_events:
        render.note(f"{progress.failed_events} events could not be routed: `trace outbox list` shows why")
    if progress.dead_batches:
        render.note(f"{progress.dead_batches} batches were refused by the sink: `trace sink dead` shows why")
