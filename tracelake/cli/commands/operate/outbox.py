"""`trace outbox`: entries that are not published yet, or failed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tracelake.cli.options import Home, Json

app = typer.Typer(help="The outbox: entries that are pending or have failed.", no_args_is_help=True)


class OutboxState(StrEnum):
    PENDING = "Pending"
    PROCESSING = "Processing"
    FAILED = "Failed"


OfStatus = Annotated[
    OutboxState | None, typer.Option("--status", help="Only those in this state.", case_sensitive=False)
]
Limit = Annotated[int, typer.Option("--limit", help="How many at most.", metavar="N", min=1, max=500)]
Before = Annotated[
    int | None, typer.Option("--before", help="Continue after this entry of the last page.", metavar="ID")
]
Ids = Annotated[list[int] | None, typer.Argument(help="Entries to retry; none: all that failed.", metavar="[ID]...")]


@app.command("list", short_help="List pending and failed entries, the newest first.")
def list_(
    status: OfStatus = None, limit: Limit = 50, before: Before = None, home: Home = None, json: Json = False
) -> None:
    """List pending and failed outbox entries, the newest first, with the error of failed ones. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.outbox import OutboxList

    filters = {"status": status and status.value, "limit": limit, "before": before}
    with remote(home) as gateway:
        found = gateway.call("list_outbox", OutboxList, query=filters)
    if render.json_or_empty(found, found.rows, "no entry is pending or failed", in_json=json):
        return
    render.table(
        ("id", "kind", "status", "tries", "due", "last error"),
        [(row.id, row.kind, row.status, row.attempts, row.available_at, row.last_error) for row in found.rows],
    )
    if found.next:
        render.note(f"there are more: --before {found.next}")


@app.command("retry")
def retry(ids: Ids = None, home: Home = None, json: Json = False) -> None:
    """Retry outbox entries that failed. For admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.outbox import OutboxRetryAnswer, OutboxRetryRequest

    with remote(home) as gateway:
        done = gateway.call("retry_outbox", OutboxRetryAnswer, body=OutboxRetryRequest(ids=ids or None))
    render.answer(
        done,
        f"{len(done.retried)} entries will be retried" if done.retried else "no such entry has failed",
        in_json=json,
    )
