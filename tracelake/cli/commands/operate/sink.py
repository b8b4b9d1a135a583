"""`trace sink`: runs the sink; `dead` lists the batches that it refused, `replay` replays one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from tracelake.cli.commands.operate.processes import ABOUT, SettingsFrom, run_component
from tracelake.cli.options import Home, Json
from tracelake.errors import BadInput

app = typer.Typer(help=f"{ABOUT['sink']} Without a command: runs the process.", invoke_without_command=True)

Dataset = Annotated[str | None, typer.Option("--dataset", help="Only of this dataset.", metavar="NAME")]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[
    UUID | None, typer.Option("--before", help="Continue after this publish of the last page.", metavar="PUBLISH_ID")
]
Publish = Annotated[
    UUID, typer.Argument(help="The publish, as `trace sink dead` shows it.", metavar="PUBLISH_ID", show_default=False)
]
Batch = Annotated[
    Path | None,
    typer.Option("--batch", help="A repaired batch of the same content type, to replay instead.", metavar="FILE"),
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
    from tracelake.wire.user.datasets import DeadBatchList

    filters = {"dataset": dataset, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.call("list_dead_batches", DeadBatchList, query=filters)
    if render.json_or_empty(found, found.batches, "no dead batches", in_json=json):
        return
    dead_batch_table(found.batches)
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("replay", short_help="Replay a dead batch, or a repaired one instead.")
def replay(publish: Publish, batch: Batch = None, home: Home = None, json: Json = False) -> None:
    """Replay a dead batch after its cause was fixed, or a repaired batch instead."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.datasets import ReplayAnswer, ReplayRequest

    body = ReplayRequest(batch=None if batch is None else _read(batch))
    with remote(home) as gateway:
        done = gateway.call("replay_batch", ReplayAnswer, body=body, publish=publish)
    render.answer(done, f"{done.publish_id} is replayed from {done.batch_uri}", in_json=json)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"the batch cannot be read: {error.strerror}", where=str(file)) from None
