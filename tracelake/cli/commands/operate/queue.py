"""`trace queue`: dead letters of the queues, for those who run the system: a queue carries messages of everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tracelake.cli.options import Home, Json, settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracelake.ports import DeadLetter, Queue
    from tracelake.settings import Settings

T = TypeVar("T")

app = typer.Typer(help="The queues: messages that were given up.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue, without its prefix.", metavar="QUEUE")]
AnyName = Annotated[str | None, typer.Argument(help="The queue; none: all of them.", metavar="[QUEUE]")]
Limit = Annotated[int, typer.Option("--limit", help="How many of each queue at most.", metavar="N", min=1, max=10_000)]
Ids = Annotated[list[str] | None, typer.Argument(help="Messages to send again; none: all.", metavar="[ID]...")]


@app.command("dead", short_help="List messages that were given up, the oldest first.")
def dead(queue: AnyName = None, limit: Limit = 50, home: Home = None, json: Json = False) -> None:
    """List messages that were delivered too often without an acknowledgement, the oldest first."""
    from tracelake.cli import printing, render

    async def look(opened: Queue) -> list[dict[str, object]]:
        names = [queue] if queue else _names(settings)
        return [_shown(name, letter) for name in names for letter in await opened.dead_letters(name, limit)]

    settings = _with_queue(home)
    found = asyncio.run(_on_queue(settings, look))
    if json:
        printing.as_json(found)
    elif found:
        render.table(("queue", "id", "deliveries", "sent", "message"), [tuple(row.values()) for row in found])
    else:
        printing.out.print("no message was given up")


@app.command("redrive", short_help="Send messages again that were given up.")
def redrive(queue: Name, ids: Ids = None, home: Home = None, json: Json = False) -> None:
    """Send messages again that were given up; those that still fail are given up again."""
    from tracelake.cli import printing
    from tracelake.ports import MessageId

    wanted = [MessageId(name) for name in ids] if ids else None
    moved = asyncio.run(_on_queue(_with_queue(home), lambda opened: opened.redrive(queue, wanted)))
    if json:
        printing.as_json({"redriven": moved})
    else:
        printing.out.print(f"{moved} messages are sent again")


async def _on_queue(settings: Settings, work: Callable[[Queue], Awaitable[T]]) -> T:
    from tracelake.wiring import open_queue

    async with open_queue(settings) as queue:
        return await work(queue)


def _with_queue(home: Path | None) -> Settings:
    from tracelake.errors import SettingsError
    from tracelake.wiring import with_secrets

    settings = with_secrets(settings_of(home), "queue")
    if not settings.queue.is_set:
        raise SettingsError(
            "the settings name no queue",
            where="queue.dsn",
            hint="set queue.dsn, or queue.backend to sqs; only `trace up` has the password of the embedded queue",
        )
    return settings


def _names(settings: Settings) -> list[str]:
    from tracelake.domain.flow.tiers import queue_names

    return queue_names(runtime.queue for runtime in settings.runtimes.values() if runtime.queue)


def _shown(queue: str, letter: DeadLetter) -> dict[str, object]:
    return {
        "queue": queue,
        "id": letter.id,
        "deliveries": letter.receives,
        "sent": letter.sent_at.isoformat(timespec="seconds"),
        "message": letter.body.decode(errors="replace"),
    }
