"""`trace source`: hold an always-on source, and let it go on."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

app = typer.Typer(help="Always-on sources: pause, resume.", no_args_is_help=True)

Dag = Annotated[str, typer.Argument(help="The DAG's name.", metavar="DAG", show_default=False)]
Job = Annotated[str, typer.Argument(help="The source's name.", metavar="JOB", show_default=False)]

SAID = {
    (True, True): "is paused; `trace source resume` lets it go on",
    (True, False): "was paused before; nothing changed",
    (False, True): "goes on",
    (False, False): "goes on as before; nothing changed",
}
"""By whether it is paused now, and whether that is new."""


@app.command("pause", short_help="Stop an always-on source after what it is at.")
def pause(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Stop an always-on source after what it is at, and keep it stopped, also over deploys, until it is resumed."""
    _ask("pause_source", dag, job, home, json=json)


@app.command("resume")
def resume(dag: Dag, job: Job, home: Home = None, json: Json = False) -> None:
    """Let a paused source go on from where it stopped, as the same run."""
    _ask("resume_source", dag, job, home, json=json)


def _ask(call: str, dag: str, job: str, home: Home, *, json: bool) -> None:
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_dags import PauseAnswer

    with remote(home) as gateway:
        done = gateway.ask(call, PauseAnswer, dag=dag, job=job)
    if json:
        render.as_json(done)
        return
    render.note(f"{dag}.{job} {SAID[done.paused, done.changed]}")
