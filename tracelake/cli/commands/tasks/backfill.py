"""`trace backfill`: process a range of the past, or everything that jobs lack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import typer
from typer.core import TyperGroup

from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.message import Message
    from tracelake.wire.user.backfills import BackfillAnswer, BackfillRow

START = "start"
EVERY_SECONDS = 1.0
BUDGETS = ("requests", "bytes", "tasks", "hours")
_HOW_TO_RAISE = "`trace backfill resume ID --budget ...` raises it"
BUDGET_HINT = ", ".join(f"{name}=N" for name in BUDGETS)


class DefaultStart(TyperGroup):
    """`trace backfill DAG` is `trace backfill start DAG`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {*self.commands, "--help"}
        return super().parse_args(ctx, args if not args or args[0] in own else [START, *args])


app = typer.Typer(
    cls=DefaultStart,
    help="Process a range of the past, or everything that jobs lack: start (`trace backfill DAG`), list, show, pause,"
    " resume, cancel.",
    no_args_is_help=True,
)

Dag = Annotated[str, typer.Argument(help="The DAG.", metavar="DAG", show_default=False)]
Job = Annotated[
    str | None,
    typer.Argument(
        help="The job. Without it: the manual source of the DAG for a range, all jobs for gaps.", metavar="JOB"
    ),
]
Blocks = Annotated[str | None, typer.Option("--range", help="A range of blocks, both ends included.", metavar="A-B")]
Lacking = Annotated[bool, typer.Option("--gaps", help="Everything that the jobs lack (`trace gaps`).")]
Order = Annotated[
    Literal["oldest", "newest"], typer.Option("--order", help="Which blocks come first.", metavar="oldest|newest")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Where it stops: so many calls to chain nodes, bytes of files, tasks, or hours.",
        metavar="requests=N,bytes=N,tasks=N,hours=H",
    ),
]
Raised = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="A larger budget, of all since the start; hours count from now.",
        metavar="requests=N,bytes=N,tasks=N,hours=H",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what it would process, and do nothing.")]
Again = Annotated[bool, typer.Option("--again", help="Also what was processed before, and what failed.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress, until its tasks have ended.")]
Id = Annotated[UUID, typer.Argument(help="The backfill.", metavar="ID", show_default=False)]


@app.command(START, short_help="Start a backfill.")
def start(
    dag: Dag,
    job: Job = None,
    *,
    blocks: Blocks = None,
    gaps: Lacking = False,
    order: Order = "oldest",
    budget: Budget = None,
    dry_run: DryRun = False,
    again: Again = False,
    wait: Wait = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Process a range of the past, or everything that jobs lack. What is there already is not processed again.

    Tasks are created in batches while the queue of the job is short, so new data does not wait behind them. Ctrl-C
    during `--wait` leaves the backfill running.
    """
    from tracelake.cli import printing
    from tracelake.cli.api import remote
    from tracelake.domain.ranges import parse_partition_key
    from tracelake.wire.user.backfills import BackfillAnswer, BackfillRequest

    if gaps == (blocks is not None):
        raise BadInput("give one of --range and --gaps", where="--range, --gaps")
    start, end = parse_partition_key(blocks).edges if blocks else (None, None)
    limits = _budget(budget)
    request = BackfillRequest(job, start, end, order, again=again, dry_run=dry_run, **limits)
    with remote(home) as gateway:
        with printing.waiting(f"comparing {dag}", quiet=json):
            done = gateway.call("start_backfill", BackfillAnswer, body=request, dag=dag)
        if wait and done.backfill is not None:
            done = BackfillAnswer(done.planned, done.there, _follow(gateway, done.backfill, quiet=json))
    _print_started(done, dry_run=dry_run, json=json)


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the newest backfills."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.backfills import BackfillList

    with remote(home) as gateway:
        found = gateway.call("list_backfills", BackfillList)
    if json:
        render.as_json(found)
        return
    columns = ("id", "dag", "job", "range", "status", "created", "planned", "started")
    render.table(
        columns, [(b.id, b.dag, b.job, b.scope, b.status, b.created, b.planned, b.created_at) for b in found.backfills]
    )


@app.command("show")
def show(backfill: Id, *, wait: Wait = False, home: Home = None, json: Json = False) -> None:
    """Show a backfill and its progress."""
    from tracelake.cli.api import remote
    from tracelake.wire.user.backfills import BackfillRow

    with remote(home) as gateway:
        found = gateway.call("show_backfill", BackfillRow, backfill=str(backfill))
        if wait:
            found = _follow(gateway, found, quiet=json)
    _print(found, json=json)


@app.command("pause", short_help="Create no more tasks for a backfill.")
def pause(backfill: Id, home: Home = None, json: Json = False) -> None:
    """Create no more tasks for a backfill until it is resumed; those that it has created run on."""
    _change("pause_backfill", backfill, home, json=json)


@app.command("resume", short_help="Continue a paused backfill where it was.")
def resume(backfill: Id, *, budget: Raised = None, home: Home = None, json: Json = False) -> None:
    """Continue a paused backfill where it was; one whose budget is used up needs a larger one."""
    from tracelake.wire.user.backfills import BackfillBudget

    _change("resume_backfill", backfill, home, json=json, body=BackfillBudget(**_budget(budget)))


@app.command("cancel")
def cancel(backfill: Id, home: Home = None, json: Json = False) -> None:
    """End a backfill; tasks that it has created run on."""
    _change("cancel_backfill", backfill, home, json=json)


def _change(call: str, backfill: UUID, home: Home, *, json: bool, body: Message | None = None) -> None:
    from tracelake.cli.api import remote
    from tracelake.wire.user.backfills import BackfillRow

    with remote(home) as gateway:
        found = gateway.call(call, BackfillRow, body=body, backfill=str(backfill))
    _print(found, json=json)


def _budget(text: str | None) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if name not in BUDGETS:
            raise BadInput(f"{part.strip()[:80]!r} is no budget", where="--budget", hint=BUDGET_HINT)
        limits[name] = _limit(name, value)
    return limits


def _limit(name: str, value: str) -> float:
    try:
        number: float = float(value) if name == "hours" else int(value)
    except ValueError:
        raise BadInput(f"{value[:80]!r} is not a number of {name}", where="--budget") from None
    if not 0 < number < 2**53:
        hint = "`--dry-run` prints what it would process"
        raise BadInput(f"a budget of {value} {name} allows nothing", where="--budget", hint=hint)
    return number


def _follow(gateway: Remote, backfill: BackfillRow, *, quiet: bool) -> BackfillRow:
    """Until it has ended or is paused, and its tasks too; Ctrl-C leaves it running."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracelake.cli import printing, render
    from tracelake.wire.user.backfills import BackfillRow

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=printing.err, disable=quiet or not printing.err.is_terminal) as progress:
        shown = progress.add_task(f"{backfill.dag} {backfill.scope}", total=backfill.planned)
        try:
            while backfill.status == "Running" or (backfill.open_tasks and backfill.status == "Done"):
                progress.update(shown, completed=max(backfill.created - backfill.open_tasks, 0))
                time.sleep(EVERY_SECONDS)
                backfill = gateway.call("show_backfill", BackfillRow, backfill=str(backfill.id))
        except KeyboardInterrupt:
            if not quiet:
                render.note(f"the backfill goes on; `trace backfill pause {backfill.id}` pauses it")
            raise
        progress.update(shown, completed=backfill.created)
    return backfill


def _print_started(done: BackfillAnswer, *, dry_run: bool, json: bool) -> None:
    from tracelake.cli import render

    if json:
        render.as_json(done)
    elif dry_run:
        render.note(f"{done.planned} to process, {done.there} there already; nothing was started")
    elif done.backfill is None:
        render.note(f"nothing to do: {done.there} there already; `--again` processes them again")
    else:
        _print(done.backfill, json=False)


def _print(found: BackfillRow, *, json: bool) -> None:
    from tracelake.cli import render

    if json:
        render.as_json(found)
        return
    render.pairs(
        [
            ("backfill", found.id),
            ("of", f"{found.dag}.{found.job}" if found.job else found.dag),
            ("range", found.scope),
            ("status", found.status),
            ("ended because", found.ended_because),
            ("stopped because", found.stopped_because and f"{found.stopped_because}; {_HOW_TO_RAISE}"),
            ("planned", found.planned),
            ("created", found.created),
            ("open tasks", found.open_tasks),
            ("requests", _used(found.used_requests, found.budget_requests)),
            ("bytes", _used(found.used_bytes, found.budget_bytes)),
            ("budget of tasks", found.budget_tasks),
            ("budget until", found.budget_until),
            ("started", found.created_at),
            ("by", found.created_by),
        ]
    )


def _used(used: int | None, budget: int | None) -> str | None:
    if used is None or not (used or budget):
        return None
    return f"{used:,}" if budget is None else f"{used:,} of {budget:,}"
