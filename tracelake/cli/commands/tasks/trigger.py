"""`trace trigger`: start a manual source, and wait for what it causes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated
from uuid import UUID, uuid4

import typer

from tracelake.cli.options import Home, Json, RequestId
from tracelake.domain.text.count_of import count_of
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.user.dags import TriggerAnswer, TriggerProgress

Dag = Annotated[str, typer.Argument(help="The DAG.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="Its source, of kind `manual`.", metavar="JOB", show_default=False)]
Cursor = Annotated[int | None, typer.Option("--cursor", help="Up to this number.", metavar="N", min=0)]
Partition = Annotated[str | None, typer.Option("--partition", help="One partition.", metavar="KEY")]
Range = Annotated[str | None, typer.Option("--range", help="A range of blocks, both ends included.", metavar="A-B")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until its tasks have ended; the exit code is 1 if one did not complete.")
]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="With --wait: also for everything that follows from their results.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        help="With --wait: at most so many seconds; the exit code is then 124, and the tasks go on.",
        metavar="S",
        min=0,
        show_default="no limit",
    ),
]

TIME_IS_OVER = 124
"""The exit code, as of timeout(1)."""
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
    timeout: Timeout = None,
    home: Home = None,
    json: Json = False,
) -> None:
    """Start a manual source for a cursor, a partition or a range; without any of them, for the whole.

    With --wait, tasks count that an earlier trigger for the same created. Ctrl-C and --timeout end the waiting, not the
    tasks; the same command with the --request-id that was printed waits again.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user.dags import TriggerAnswer, TriggerRequest

    if sum(scope is not None for scope in (cursor, partition, blocks)) > 1:
        raise BadInput("give one of --cursor, --partition and --range", where="--cursor, --partition, --range")
    if downstream and not wait:
        raise BadInput("--downstream says what --wait waits for", where="--downstream", hint="give --wait too")
    if timeout is not None and not wait:
        raise BadInput("--timeout says how long --wait waits", where="--timeout", hint="give --wait too")
    start, end = parse_partition_key(blocks).edges if blocks else (None, None)
    request = TriggerRequest(cursor=cursor, partition=partition, start=start, end=end, request_id=request_id or uuid4())
    with remote(home) as gateway:
        done = gateway.call("trigger", TriggerAnswer, body=request, dag=dag, job=job)
        if not json:
            _show(f"{dag}.{job}", done)
        seconds = math.inf if timeout is None else timeout
        progress = _wait(gateway, done, seconds, downstream=downstream, quiet=json) if wait else None
    if json:
        render.as_json(progress or done)
    elif progress is None:
        render.note("  `trace task list` shows the resulting tasks")
    else:
        _show_end(progress)
    if progress is not None and not progress.succeeded:
        raise typer.Exit(1 if progress.ended else TIME_IS_OVER)


def _show(source: str, done: TriggerAnswer) -> None:
    from tracelake.cli import render

    if done.created:
        made = f"task {done.task_id}" if done.task_id else f"{count_of(len(done.event_ids), 'event')} for its readers"
        render.note(f"{source} was triggered (request {done.request_id}): {made}")
    else:
        render.note("this request was made before; nothing happened")


def _wait(gateway: Remote, done: TriggerAnswer, seconds: float, *, downstream: bool, quiet: bool) -> TriggerProgress:
    """Until its tasks have ended, or the time is over; Ctrl-C leaves them running."""
    from tracelake.cli import printing

    try:
        with printing.waiting("waiting for its tasks", quiet=quiet) as show:
            return _look_until(gateway, done.request_id, time.monotonic() + seconds, show, downstream=downstream)
    except KeyboardInterrupt:
        if not quiet:
            _show_that_they_go_on(done.request_id)
        raise


def _look_until(
    gateway: Remote, request_id: UUID, deadline: float, show: Callable[[str], None], *, downstream: bool
) -> TriggerProgress:
    from tracelake.wire.user.dags import TriggerProgress

    pause, query = FIRST_SECONDS, {"downstream": downstream}
    seen: TriggerProgress | None = None
    while True:
        now = gateway.call("trigger_progress", TriggerProgress, query=query, repeatable=True, request=request_id)
        left = deadline - time.monotonic()
        if now.ended or left <= 0:
            return now
        pause = FIRST_SECONDS if now != seen else min(pause * 1.5, LONGEST_SECONDS)
        seen = now
        show(_in_words(now))
        time.sleep(min(pause, left))


def _show_that_they_go_on(request_id: UUID) -> None:
    from tracelake.cli import render

    render.note(f"the tasks go on; the same command with `--wait --request-id {request_id}` waits again")


def _in_words(progress: TriggerProgress) -> str:
    """`3 of 20 tasks have ended, 2 running; 1 event to be routed`."""
    ended = progress.completed + progress.failed
    words = [f"{ended} of {count_of(progress.tasks, 'task')} have ended, {progress.running} running"]
    words += [f"{progress.failed} failed"] if progress.failed else []
    words += [f"{count_of(progress.waiting_events, 'event')} to be routed"] if progress.waiting_events else []
    batches = count_of(progress.waiting_batches, "batch", "batches")
    words += [f"{batches} on the way to the sink"] if progress.waiting_batches else []
    return "; ".join(words)


def _show_end(progress: TriggerProgress) -> None:
    from tracelake.cli import render

    if not progress.ended:
        render.note(f"the time is over: {_in_words(progress)}")
        _show_that_they_go_on(progress.request_id)
    elif not progress.tasks:
        render.note("no job that is active reads it: it created no task")
    else:
        render.note(f"{progress.completed} of {count_of(progress.tasks, 'task')} completed")
    if progress.failures:
        rows = [(task.id, f"{task.dag}.{task.job}", task.status, task.reason) for task in progress.failures]
        render.table(("id", "job", "status", "reason"), [(*row[:3], render.first_line(row[3])) for row in rows])
        render.note("`trace why ID` explains one, `trace task retry ID` gives it another attempt")
    if progress.failed_events:
        render.note(f"{count_of(progress.failed_events, 'event')} could not be routed: `trace outbox list` shows why")
    if progress.dead_batches:
        render.note(f"{progress.dead_batches} batches were refused by the sink: `trace sink dead` shows why")
