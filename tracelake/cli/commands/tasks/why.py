"""`trace why`: explains the state of a task, a dataset or a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.cli.options import Home, Json
from tracelake.cli.task_ids import find_task
from tracelake.errors import NotFound

if TYPE_CHECKING:
    from tracelake.cli.api import Remote
    from tracelake.wire.user.why import Explanation

Subject = Annotated[
    str,
    typer.Argument(
        help="A task's id or a prefix of it, or a dataset's name or uuid.",
        metavar="TASK|DATASET",
        show_default=False,
    ),
]
Partition = Annotated[
    str | None, typer.Argument(help="With a dataset: one partition, such as 1000-1999.", show_default=False)
]


def why(subject: Subject, partition: Partition = None, home: Home = None, json: Json = False) -> None:
    """Show the causal chain: event, rule, task, attempts, commit; or the exact rule that stopped it.

    For a dataset without a partition: its state, its newest commits, and its failed and waiting tasks.
    """
    from tracelake.cli import render
    from tracelake.cli.api import remote

    with remote(home) as gateway:
        found = _explained(gateway, subject, partition)
    if json:
        render.as_json(found)
    else:
        render.pairs([(found.subject, found.verdict)])
        if found.steps:
            render.table(
                ("at", "what", "happened"), [(step.at, step.kind, step.sentence) for step in found.steps], whole=("at",)
            )
        if found.stopped:
            render.note(
                f"stopped by {found.stopped.rule}" + (f"; try {found.stopped.hint}" if found.stopped.hint else "")
            )


def _explained(gateway: Remote, subject: str, partition: str | None) -> Explanation:
    """A task's id begins with a digit, a dataset's name never does; a whole uuid may be either's."""
    from tracelake.wire.user.why import Explanation

    if partition is not None:
        return gateway.call("why", Explanation, query={"dataset": subject, "partition": partition})
    whole = _is_uuid(subject)
    if whole or subject[:1].isdigit():
        try:
            return gateway.call("why", Explanation, query={"task": find_task(gateway, subject)})
        except NotFound:
            if not whole:
                raise
    return gateway.call("why", Explanation, query={"dataset": subject})


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
