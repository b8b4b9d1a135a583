"""`trace source`: pause and resume always-on sources."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

app = typer.Typer(help="Always-on sources: pause, resume.", no_args_is_help=True)

Dag = Annotated[str, typer.Argument(help="The DAG's name.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="The source's name.", metavar="JOB", show_default=False)]

MESSAGES = {
    (True, True): "is paused; `trace source resume` resumes it",
    (True, False): "was paused already; nothing changed",
    (False, True): "is resumed",
    (False, False): "was not paused; nothing changed",
}
"""By whether it is paused now, and whether that is new."""


@app.command("pause", short_help="Pause an always-on source after its current work.")
def pause(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Pause an always-on source after its current work, also across deploys, until it is resumed."""
    _set_paused("pause_source", dag, job, home, json=json)


@app.command("resume")
def resume(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Resume a paused source where it stopped, as the same run."""
    _set_paused("resume_source", dag, job, home, json=json)


def _set_paused(call: str, dag: str, job: str, home: Home, *, json: bool) -> None:
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_dags import PauseAnswer

    with remote(home) as gateway:
        done = gateway.call(call, PauseAnswer, dag=dag, job=job)
    if json:
        render.as_json(done)
        return
    render.note(f"{dag}.{job} {MESSAGES[done.paused, done.changed]}")
