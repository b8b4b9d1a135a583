"""`trace gaps`: what jobs have not processed of their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelake.cli.options import Home, Json

if TYPE_CHECKING:
    from tracelake.wire.user.backfills import Gaps

Of = Annotated[str, typer.Argument(help="What to compare.", metavar="DATASET|DAG[.JOB]", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", help="Gaps to print for each input.", metavar="N", min=1, max=1000)]


def gaps(of: Of, *, limit: Limit = 100, home: Home = None, json: Json = False) -> None:
    """List what jobs have not processed of their inputs; nothing if they are complete.

    For each input: planned = done + pending + failed. A gap is `missing` (no task yet: the next pass creates it),
    `pending` (its task waits, runs or is retried) or `failed` (its task failed or was canceled for good).
    """
    from tracelake.cli import printing, render
    from tracelake.cli.api import remote
    from tracelake.wire.user.backfills import Gaps

    with remote(home) as gateway, printing.waiting(f"comparing {of}", quiet=json):
        found = gateway.call("gaps", Gaps, query={"of": of, "limit": limit})
    if json:
        render.as_json(found)
    elif found.complete:
        render.note(f"{of} is complete ({found.checked} inputs compared)")
    else:
        _print(found)


def _print(found: Gaps) -> None:
    from tracelake.cli import render

    columns = ("job", "input", "planned", "done", "pending", "failed")
    counts = [(f"{i.dag}.{i.job}", i.input, i.planned, i.done, i.pending, i.failed) for i in found.inputs]
    render.table(columns, counts)
    render.note("")
    render.table(
        ("job", "input", "gap", "state", "partitions"),
        [(f"{i.dag}.{i.job}", i.input, gap.scope, gap.state, gap.units) for i in found.inputs for gap in i.gaps],
    )
    more = sum(item.more for item in found.inputs)
    if more:
        render.note(f"and {more} more; `--limit` prints more of them")
