"""`trace queue`: messages of the queues that were given up. A queue carries messages of everybody."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli.options import Home, Json
from tracelake.domain.text.count_of import count_of

app = typer.Typer(help="The queues: messages that were given up.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue, without its prefix.", metavar="QUEUE")]
AnyName = Annotated[str | None, typer.Argument(help="The queue; none: all of them.", metavar="[QUEUE]")]
Limit = Annotated[int, typer.Option("--limit", help="How many of each queue at most.", metavar="N", min=1, max=500)]
Ids = Annotated[list[str] | None, typer.Argument(help="Messages to send again; none: all.", metavar="[ID]...")]


@app.command("dead", short_help="List messages that were given up, the oldest first.")
def dead(queue: AnyName = None, limit: Limit = 50, home: Home = None, json: Json = False) -> None:
    """List messages that were delivered too often without an acknowledgement, the oldest first. For platform admins."""
    from tracelake.cli import render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dead_messages import DeadMessages

    with remote(home) as gateway:
        found = gateway.call("list_dead_messages", DeadMessages, query={"queue": queue, "limit": limit})
    if render.json_or_empty(found, found.messages, "no message was given up", in_json=json):
        return
    render.table(
        ("queue", "id", "deliveries", "sent", "given up", "message"),
        [(row.queue, row.id, row.deliveries, row.sent_at, row.died_at, row.message) for row in found.messages],
    )
    render.note("`trace queue redrive QUEUE [ID]...` sends them again")


@app.command("redrive", short_help="Send messages again that were given up.")
def redrive(queue: Name, ids: Ids = None, home: Home = None, json: Json = False) -> None:
    """Send messages again that were given up; those that still fail are given up again. For platform admins."""
    from tracelake.cli import printing, render
    from tracelake.cli.api import remote
    from tracelake.wire.user.dead_messages import RedriveAnswer, RedriveRequest

    with remote(home) as gateway:
        answer = gateway.call("redrive_messages", RedriveAnswer, body=RedriveRequest(ids=ids or None), queue=queue)
    if json:
        render.as_json(answer)
    else:
        printing.out.print(f"sent again: {count_of(answer.redriven, 'message')}")
