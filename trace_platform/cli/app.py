"""The verbs, put together. Each verb's file imports what it needs when it runs, so that `trace --help` is quick."""

from __future__ import annotations

import sys

import typer

from trace_platform.cli import (
    alert,
    config,
    dag,
    dataset,
    db,
    demo,
    devchain,
    doctor,
    down,
    invalidate,
    outbox,
    processes,
    query,
    say,
    sink,
    source,
    status,
    task,
    token,
    trigger,
    udf,
    up,
    why,
)
from trace_platform.errors import TraceError

app = typer.Typer(
    name="trace",
    help="Trace: curate, combine, enrich, alert on and analyse chain data and other data, past and live.",
    epilog="Begin with `trace up`. Every verb explains itself: `trace up --help`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
ON_ONE_MACHINE = "On one machine"
RUNNING = "DAGs and their work (through the Gateway)"
LOOKING = "Looking"
PARTS = "The parts (`trace up` starts them)"

app.command("up", rich_help_panel=ON_ONE_MACHINE)(up.up)
app.command("down", rich_help_panel=ON_ONE_MACHINE)(down.down)
app.command("demo", rich_help_panel=ON_ONE_MACHINE)(demo.demo)
app.command("devchain", rich_help_panel=ON_ONE_MACHINE)(devchain.devchain)
app.add_typer(dag.app, name="dag", rich_help_panel=RUNNING)
app.add_typer(source.app, name="source", rich_help_panel=RUNNING)
app.add_typer(task.app, name="task", rich_help_panel=RUNNING)
app.add_typer(dataset.app, name="datasets", rich_help_panel=RUNNING)
app.add_typer(dataset.app, name="dataset", hidden=True)  # as it was called first
app.add_typer(udf.app, name="udf", rich_help_panel=RUNNING)
app.add_typer(outbox.app, name="outbox", rich_help_panel=RUNNING)
app.add_typer(alert.app, name="alert", rich_help_panel=RUNNING)
app.command("query", rich_help_panel=RUNNING)(query.query)
app.command("trigger", rich_help_panel=RUNNING)(trigger.trigger)
app.command("invalidate", rich_help_panel=RUNNING)(invalidate.invalidate)
app.command("why", rich_help_panel=RUNNING)(why.why)
app.command("token", rich_help_panel=RUNNING)(token.token)
app.command("status", rich_help_panel=LOOKING)(status.status)
app.command("doctor", rich_help_panel=LOOKING)(doctor.doctor)
app.add_typer(config.app, name="config", rich_help_panel=LOOKING)
app.add_typer(db.app, name="db", rich_help_panel=LOOKING)
app.add_typer(sink.app, name="sink", rich_help_panel=PARTS)
for name, verb in processes.VERBS.items():
    app.command(name, rich_help_panel=PARTS)(verb)


def main() -> None:
    """Run the command line; the only place where a refusal becomes an exit code."""
    try:
        app(prog_name="trace")
    except TraceError as refusal:
        say.refuse(refusal, in_json="--json" in sys.argv)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
