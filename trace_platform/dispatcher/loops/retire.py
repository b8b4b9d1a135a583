"""Tasks that were made for a DAG version in the very moment it left are canceled at a slow beat."""

from __future__ import annotations

from trace_platform.crash_points import crash_point
from trace_platform.dispatcher.activate_dag import retire_tasks
from trace_platform.dispatcher.control import Control


class Retire:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        await retire_tasks(self._control)
        crash_point("retire.tasks_canceled")
        return 0  # nothing follows from it at once: the next beat is soon enough

    async def next_due(self) -> float | None:
        return None
