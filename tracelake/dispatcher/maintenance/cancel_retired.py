"""Cancels tasks that were created for a DAG version just as another one was activated."""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.activate import RetiredTasks
from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import fetch_row, queries


class CancelRetired(Periodic):
    def __init__(self, control: Control) -> None:
        self._control = control

    async def once(self) -> int:
        await cancel_retired_tasks(self._control)
        crash_point("cancel_retired.tasks_canceled")
        return 0  # nothing follows at once: the next pass is soon enough


async def cancel_retired_tasks(control: Control) -> int:
    tasks = await fetch_row(control.pool, queries("dags")["cancel_retired_tasks"], RetiredTasks, None, None)
    if tasks.made_again:
        control.outbox_signal.notify()
    if tasks.canceled:
        control.stops.notify()
    return tasks.canceled
