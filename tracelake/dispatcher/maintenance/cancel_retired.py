"""Tasks that were made for a DAG version in the very moment it left are canceled at a slow beat."""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.activate import retire_tasks
from tracelake.runtime.crash_points import crash_point


class CancelRetired:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        await retire_tasks(self._control)
        crash_point("cancel_retired.tasks_canceled")
        return 0  # nothing follows from it at once: the next beat is soon enough

    async def next_due(self) -> float | None:
        return None
