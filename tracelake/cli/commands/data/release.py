"""`trace release`: list, show, promote, roll back and abandon releases."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.cli.confirm import confirm
from tracelake.cli.options import Home, Json, Yes

if TYPE_CHECKING:
    from tracelake.wire.user.releases import SwitchAnswer

app = typer.Typer(
    help="Releases: versions that were built together. List, show, promote, rollback, abandon.", no_args_is_help=True
)

Id = Annotated[UUID, typer.Argument(help="The release: `trace release list`.", metavar="RELEASE", show_default=False)]
Wait = Annotated[bool, typer.Option("--wait", help="Show the progress, until it is ready.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also if it is not ready or exceeds a limit; what is missing is built afterwards."),
]
Diff = Annotated[
    bool, typer.Option("--diff", help="Compare what it has built with what serves, and show how they differ.")
]


@app.command("list")
def list_(home: Home = None, json: Json = False) -> None:
    """List the newest releases."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.releases import ReleaseList

    with remote(home) as gateway:
        found = gateway.call("list_releases", ReleaseList)
    if json:
        render.as_json(found)
        return
    columns = ("id", "state", "dags", "started", "by", "message")
    rows = [(r.id, r.state, ", ".join(r.dags), r.created_at, r.created_by, r.message) for r in found.releases]
    render.table(columns, rows)


@app.command("show")
def show(release: Id, wait: Wait = False, diff: Diff = False, home: Home = None, json: Json = False) -> None:
    """Show a release, and how far it is built. With `--wait`, the exit code is 1 if it does not become ready.

    With `--diff`, every dataset that was there before is compared on Spark, unless it was as it is now.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.release_diffs import compare, print_comparisons
    from tracelake.cli.releases import follow, next_step, print_release
    from tracelake.wire.user.releases import ReleaseDetail

    with remote(home) as gateway:
        found = gateway.call("show_release", ReleaseDetail, release=str(release))
        if wait:
            found = follow(gateway, found.release, quiet=json, until_serving=found.release.when_ready)
        if diff:
            found = compare(gateway, release, quiet=json)
    print_release(found, json=json)
    if not json:
        print_comparisons(found, columns=diff)
    if not json and (step := next_step(found)):
        render.note(step)
    if wait and found.release.state in {"Building", "Abandoned"}:
        sys.exit(1)


@app.command("promote", short_help="Make all versions of a release active, at once.")
def promote(release: Id, force: Force = False, yes: Yes = False, home: Home = None, json: Json = False) -> None:
    """Make all versions of a release that is ready the active ones, in one transaction.

    If a job of it has limits (`cutover`), its datasets are compared first: a release that exceeds one is not promoted.
    """
    from tracelake.cli.api import remote
    from tracelake.cli.release_diffs import disregarded, until_compared
    from tracelake.wire.user.releases import PromoteRequest, ReleaseDetail, SwitchAnswer

    with remote(home) as gateway:
        if force:
            found = gateway.call("show_release", ReleaseDetail, release=str(release))
            if sentences := list(disregarded(found)):
                confirm(" ".join(sentences), yes=yes)
        body = PromoteRequest(force=force)
        done = gateway.call("promote_release", SwitchAnswer, body=body, repeatable=True, release=str(release))
        if done.release.state == "Ready":
            until_compared(gateway, done.release, quiet=json)
            done = gateway.call("promote_release", SwitchAnswer, repeatable=True, release=str(release))
    _print(done, "serves", json=json)


@app.command("rollback", short_help="Make the versions before a release active again.")
def rollback(release: Id, home: Home = None, json: Json = False) -> None:
    """Make the versions that a release replaced the active ones again, in one transaction: all of them or none.

    They catch up from where they stood; `trace gaps DAG` shows what they have not processed yet.
    """
    from tracelake.cli.api import remote
    from tracelake.wire.user.releases import SwitchAnswer

    with remote(home) as gateway:
        done = gateway.call("rollback_release", SwitchAnswer, repeatable=True, release=str(release))
    _print(done, "was rolled back", json=json)


@app.command("abandon", short_help="End a release that is being built or ready.")
def abandon(release: Id, home: Home = None, json: Json = False) -> None:
    """End a release that is being built or ready: its tasks end, and what it has built is removed after some days."""
    from tracelake.cli.api import remote
    from tracelake.cli.releases import print_release
    from tracelake.wire.user.releases import ReleaseRow

    with remote(home) as gateway:
        found = gateway.call("abandon_release", ReleaseRow, repeatable=True, release=str(release))
    print_release(found, json=json)


def _print(done: SwitchAnswer, what: str, *, json: bool) -> None:
    from tracelake.cli import render

    if json:
        render.as_json(done)
        return
    render.note(f"release {done.release.id} {what}")
    render.table(("dag", "active version"), list(done.versions.items()))
