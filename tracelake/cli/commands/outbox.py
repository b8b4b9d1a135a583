"""`trace outbox`: promises to the outside that are owed, or were given up."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

app = typer.Typer(help="The outbox: promises that are owed or were given up.", no_args_is_help=True)


class Status(StrEnum):
    PENDING = "Pending"
    PROCESSING = "Processing"
    FAILED = "Failed"


OfStatus = Annotated[Status | None, typer.Option("--status", help="Only those in this state.", case_sensitive=False)]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[int | None, typer.Option("--before", help="Go on after this row of the last page.", metavar="ID")]
Ids = Annotated[
    list[int] | None, typer.Argument(help="Rows to try again; none: all that were given up.", metavar="[ID]...")
]


@app.command("list", short_help="List promises that are not kept yet, the newest first.")
def list_(
    status: OfStatus = None, limit: Limit = 50, before: Before = None, home: Home = None, json: Json = False
) -> None:
    """List promises that are not kept yet, the newest first; `Failed` ones were given up and say why. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_outbox import OutboxList

    asked = {"status": status and status.value, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.ask("list_outbox", OutboxList, query=asked)
    if json:
        render.as_json(found)
        return
    if not found.rows:
        render.note("nothing is owed, and nothing was given up")
        return
    render.table(
        ("id", "kind", "status", "tries", "due", "last error"),
        [(row.id, row.kind, row.status, row.attempts, row.available_at, row.last_error) for row in found.rows],
    )
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("retry")
def retry(ids: Ids = None, home: Home = None, json: Json = False) -> None:
    """Try promises again that were given up. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user_outbox import OutboxRetryAnswer, OutboxRetryRequest

    with remote(home) as gateway:
        done = gateway.ask("retry_outbox", OutboxRetryAnswer, body=OutboxRetryRequest(ids=ids or None))
    if json:
        render.as_json(done)
    else:
        render.note(f"{len(done.retried)} will be tried again" if done.retried else "nothing like that was given up")
