"""Finds a task by its id or a prefix of it."""

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

TaskId = Annotated[str, typer.Argument(help="The task's id, or a prefix of it.", metavar="TASK", show_default=False)]


def find_task(gateway: Remote, text: str) -> UUID:
    """The only task whose id has this prefix; a whole id is not looked up."""
    from tracelake.wire.user.tasks import TaskList

    try:
        return UUID(text)
    except ValueError:
        pass
    if re.match(ID_PREFIX, text) is None:
        raise BadInput(f"{text[:80]!r} is not the id of a task", where="TASK", hint="`trace task list` shows the ids")
    tasks = gateway.call("list_tasks", TaskList, query={"prefix": text, "limit": SHOWN}).tasks
    if not tasks:
        raise NotFound(
            f"no task has an id that begins with {text}", where="TASK", hint="`trace task list` shows the ids"
        )
    if len(tasks) > 1:
        ids = ", ".join(str(task.id) for task in tasks)
        raise BadInput(
            f"several tasks have an id that begins with {text}: {ids}", where="TASK", hint="give a longer prefix"
        )
    return tasks[0].id
