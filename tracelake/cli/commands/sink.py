"""`trace sink`: alone, the sink itself; with `dead` and `replay`, what it refused, and trying that again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from tracelake.cli.commands.processes import ABOUT, SettingsFrom, run_component
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

app = typer.Typer(help=f"{ABOUT['sink']} Alone: the process itself.", invoke_without_command=True)

Dataset = Annotated[str | None, typer.Option("--dataset", help="Only of this dataset.", metavar="NAME")]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[
    UUID | None, typer.Option("--before", help="Go on after this publish of the last page.", metavar="PUBLISH_ID")
]
Publish = Annotated[
    UUID, typer.Argument(help="The publish, as `trace sink dead` shows it.", metavar="PUBLISH_ID", show_default=False)
]
Batch = Annotated[
    Path | None,
    typer.Option(
        "--batch", help="A repaired batch, of the same content type, in place of the one that is dead.", metavar="FILE"
    ),
]


@app.callback()
def sink(context: typer.Context, home: Home = None, settings: SettingsFrom = None) -> None:
    if context.invoked_subcommand is None:
        run_component("sink", home, settings)


@app.command("dead", short_help="List batches that the sink refused, the newest first.")
def dead(
    dataset: Dataset = None, limit: Limit = 50, before: Before = None, home: Home = None, json: Json = False
) -> None:
    """List batches that the sink refused, with line and reason, the newest first."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.cli.dead_batches import dead_batch_table
    from tracelake.wire.user_datasets import DeadBatchList

    asked = {"dataset": dataset, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.ask("list_dead_batches", DeadBatchList, query=asked)
    if json:
        render.as_json(found)
        return
    if not found.batches:
        render.note("no batch is dead")
        return
    dead_batch_table(found.batches)
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("replay", short_help="Try a dead batch again, or a repaired one for it.")
def replay(publish: Publish, batch: Batch = None, home: Home = None, json: Json = False) -> None:
    """Try a dead batch again, after what was wrong has been mended; or a repaired one in its place."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_datasets import ReplayAnswer, ReplayRequest

    body = ReplayRequest(batch=None if batch is None else _read(batch))
    with remote(home) as gateway:
        done = gateway.ask("replay_batch", ReplayAnswer, body=body, publish=publish)
    if json:
        render.as_json(done)
    else:
        render.note(f"{done.publish_id} is tried again, from {done.batch_uri}")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as wrong:
        raise BadInput(f"the batch cannot be read: {wrong.strerror}", where=str(file)) from None
