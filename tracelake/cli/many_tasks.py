"""Cancels or retries many tasks: counts them, asks, and repeats the call until all are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracelake.cli import printing, render
from tracelake.cli.confirm import confirm
from tracelake.wire.user.tasks import ManyTasksAnswer, ManyTasksRequest

if TYPE_CHECKING:
    from tracelake.cli.api import Remote


def change_tasks(gateway: Remote, call: str, request: ManyTasksRequest, verb: str, *, yes: bool, json: bool) -> None:
    counted = gateway.call(call, ManyTasksAnswer, body=msgspec.structs.replace(request, dry_run=True))
    if counted.left:
        tasks = "1 task" if counted.left == 1 else f"{counted.left:,} tasks"
        confirm(f"This would {verb} {tasks}.", yes=yes)
    changed = _repeat(gateway, call, request, counted.left, verb, quiet=json)
    if json:
        printing.as_json({"changed": changed})
    else:
        render.note(f"{verb}: {changed:,} tasks" if changed else "no such task")


def _repeat(gateway: Remote, call: str, request: ManyTasksRequest, total: int, verb: str, *, quiet: bool) -> int:
    """Stops when a call changes nothing: new tasks may be created all the time, and at most `total` were agreed to."""
    from rich.progress import Progress

    changed = 0
    with Progress(console=printing.err, transient=True, disable=quiet or not printing.err.is_terminal) as bar:
        shown = bar.add_task(f"{verb} tasks", total=total)
        while changed < total:
            done = gateway.call(call, ManyTasksAnswer, body=request).changed
            if not done:
                break
            changed += done
            bar.update(shown, completed=changed)
    return changed
