"""A task by its id, or by the beginning of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from tracelake.domain.ids import ID_PREFIX
from tracelake.errors import BadInput, NotFound

if TYPE_CHECKING:
    from tracelake.cli.api import Remote

SHOWN = 5

TaskId = Annotated[
    str, typer.Argument(help="The task's id, or the beginning of it.", metavar="TASK", show_default=False)
]


def find_task(gateway: Remote, text: str) -> UUID:
    """The one task whose id begins so; a whole id is not looked up."""
    from tracelake.wire.user_tasks import TaskList

    try:
        return UUID(text)
    except ValueError:
        pass
    if re.match(ID_PREFIX, text) is None:
        raise BadInput(f"{text[:80]!r} is not the id of a task", where="TASK", hint="`trace task list` shows the ids")
    found = gateway.ask("list_tasks", TaskList, query={"prefix": text, "limit": SHOWN}).tasks
    if not found:
        raise NotFound(
            f"no task has an id that begins with {text}", where="TASK", hint="`trace task list` shows the ids"
        )
    if len(found) > 1:
        ids = ", ".join(str(item.id) for item in found)
        raise BadInput(f"several tasks have an id that begins with {text}: {ids}", where="TASK", hint="give more of it")
    return found[0].id
