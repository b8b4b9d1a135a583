"""`trace job`: pause and resume jobs of every kind."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.commands.tasks.source import Dag, set_paused
from tracelake.cli.options import Home, Json

app = typer.Typer(help="Jobs: pause, resume.", no_args_is_help=True)

Job = Annotated[str, typer.Argument(help="The job's name.", metavar="JOB", show_default=False)]


@app.command("pause", short_help="Give a job no new tasks until it is resumed.")
def pause(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Give a job no new tasks until it is resumed, also across deploys.

    What would become a task waits, in order. Tasks that the job has already are run. An always-on source stops after
    its current work.
    """
    set_paused("job", "pause_job", dag, job, home, json=json)


@app.command("resume")
def resume(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Resume a paused job: what has waited becomes tasks, in order."""
    set_paused("job", "resume_job", dag, job, home, json=json)


@app.command("pauses")
def pauses(home: Home = None, json: Json = False) -> None:
    """List the paused jobs, why each is paused, and how much waits for it."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dags import PauseList

    with remote(home) as gateway:
        found = gateway.call("list_pauses", PauseList)
    if json:
        render.as_json(found)
    elif not found.pauses:
        render.note("no job is paused")
    else:
        rows = [(f"{pause.dag}.{pause.job}", pause.because, pause.since, pause.held) for pause in found.pauses]
        render.table(("job", "why", "since", "waiting"), rows, whole=("job",))
