"""`trace deploy`: build DAGs beside the active versions, and make them active together."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tracelake.cli.commands.data.plan import Files
from tracelake.cli.options import Home, Json

PlanHash = Annotated[
    str | None, typer.Option("--plan", help="Refuse unless `trace plan` still prints this hash.", metavar="HASH")
]
WhenReady = Annotated[bool, typer.Option("--when-ready", help="Promote it as soon as it is ready.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress, until it is ready (or promoted).")]


def deploy(
    files: Files,
    *,
    plan: PlanHash = None,
    when_ready: WhenReady = False,
    wait: Wait = False,
    home: Home = None,
    json: Json = False,
) -> None:
    """Start a release: deploy DAGs, with all that read what changes, and build them beside the active versions.

    Readers see the former rows until the release is promoted (`trace release promote`). Ctrl-C during `--wait` leaves
    it running. The exit code is 1 if `--wait` ends without it.
    """
    from tracelake.cli import printing, render
    from tracelake.cli.api import remote
    from tracelake.cli.dag_file import problems_shown
    from tracelake.cli.releases import (
        follow,
        next_step,
        print_plan,
        print_release,
        push_bundles,
        read_files,
    )
    from tracelake.wire.user.releases import ReleaseAnswer, ReleaseDetail, ReleaseRequest

    sources = read_files(files, json=json)
    request = ReleaseRequest(dags=[source.text for source in sources], plan=plan, when_ready=when_ready)
    with remote(home) as gateway, problems_shown(", ".join(files), json=json):
        push_bundles(gateway, sources, quiet=json)
        with printing.waiting("deploying", quiet=json):
            started = gateway.call("start_release", ReleaseAnswer, body=request)
        if started.release is None:
            print_plan(started.plan) if not json else render.as_json(started)
            return
        if wait:
            found = follow(gateway, started.release, quiet=json, until_serving=when_ready)
        else:
            found = gateway.call("show_release", ReleaseDetail, release=str(started.release.id))
    print_release(found, json=json)
    if not json and (step := next_step(found)):
        render.note(step)
    if wait and found.release.state not in {"Ready", "Serving"}:
        sys.exit(1)
