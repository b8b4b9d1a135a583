"""All verbs. A verb's file imports what it needs when the verb runs, so that `trace --help` is quick."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.commands.admin import audit, org, role, secret, service_token, user
from tracelake.cli.commands.data import alert, dag, dataset, deploy, diff, plan, query, release, udf, verify
from tracelake.cli.commands.operate import backup, config, db, outbox, processes, queue, sink, token
from tracelake.cli.commands.start import demo, devchain, doctor, down, status, up
from tracelake.cli.commands.tasks import backfill, gaps, invalidate, job, source, task, trigger, why
from tracelake.cli.grouped_help import GroupedHelp
from tracelake.errors import TraceError

app = typer.Typer(
    name="trace",
    cls=GroupedHelp,
    help="Trace: curate, combine, enrich, alert on and analyse chain data and other data, past and live.",
    epilog="Begin with `trace up`. Every verb has its own help: `trace up --help`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        printing.out.print(f"trace {version('tracelake')}", markup=False)
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of `trace` itself."""


# `grouped_help.py` has the groups of `trace --help`.
app.command("up", short_help="Start everything on this machine; Ctrl-C stops it.")(up.up)
app.command("down", short_help="Stop everything, and wait until it has stopped.")(down.down)
app.command("demo", short_help="Run a whole Trace on a test chain, show it, remove it.")(demo.demo)
app.command("devchain", short_help="Serve a simulated Ethereum chain for tests.")(devchain.devchain)
app.command("status", short_help="Show every process and whether it runs.")(status.status)
app.command("doctor", short_help="Check whether this machine can run Trace.")(doctor.doctor)
app.add_typer(dag.app, name="dag", short_help="DAGs: validate, deploy, show, activate, delete, and more.")
app.command("plan", short_help="Show what a change of DAGs would rebuild.")(plan.plan)
app.command("deploy", short_help="Build DAGs beside the active versions: a release.")(deploy.deploy)
app.add_typer(release.app, name="release")
app.add_typer(dataset.app, name="datasets")
app.add_typer(dataset.app, name="dataset", hidden=True)  # its former name
app.command("query", short_help="Query datasets with SQL (without SQL: run the query service).")(query.query)
app.command("diff", short_help="Compare a dataset at two commits, or in two generations.")(diff.diff)
app.command("verify", short_help="Verify the files and the ledger of a dataset.")(verify.verify)
app.add_typer(udf.app, name="udf", short_help="User functions: build, test, push and list bundles.")
app.add_typer(alert.app, name="alert")
app.add_typer(task.app, name="task")
app.command("why", short_help="Explain why a task or dataset is in its state.")(why.why)
app.add_typer(job.app, name="job")
app.add_typer(source.app, name="source")
app.command("trigger", short_help="Start a manual source.")(trigger.trigger)
app.command("invalidate", short_help="Invalidate a part of a dataset; its readers recompute it.")(invalidate.invalidate)
app.command("gaps", short_help="List what jobs have not processed; nothing if complete.")(gaps.gaps)
app.add_typer(backfill.app, name="backfill", short_help="Process a range of the past, or all that jobs lack.")
app.add_typer(user.app, name="user", short_help="Users: list, show, add, set-role, remove.")
app.add_typer(role.app, name="role")
app.add_typer(org.app, name="org")
app.add_typer(secret.app, name="secret", short_help="Secrets of jobs and webhooks: set, list, remove.")
app.add_typer(service_token.app, name="service-token", short_help="Tokens of services: list, create, revoke.")
app.add_typer(audit.app, name="audit", short_help="Who did what: list, export, verify.")
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.command("backup", short_help="Copy the running system into a folder.")(backup.backup)
app.command("restore", short_help="Restore a backup into a new or stopped home.")(backup.restore)
app.add_typer(outbox.app, name="outbox")
app.add_typer(queue.app, name="queue")
app.add_typer(token.app, name="token", short_help="Print a token of this machine; create, list, revoke yours.")
app.add_typer(sink.app, name="sink", short_help="Drains batches; lists and replays dead ones.")
for name, verb in processes.VERBS.items():
    app.command(name)(verb)


def main() -> None:
    """Runs the command line; only here an error becomes an exit code."""
    try:
        app(prog_name="trace")
    except TraceError as refusal:
        printing.refuse(refusal, in_json="--json" in sys.argv)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
