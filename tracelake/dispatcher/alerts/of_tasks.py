"""Lists the alert definitions that a task works with, as they are when it is claimed.

`alert_evaluate` gets the enabled definitions that its job names; `alert_route` gets all enabled definitions with the
names of their channels. Neither gets addresses or secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from tracelake.store.queries import Queryable, queries
from tracelake.wire.task.lifecycle import AlertRef, TaskPayload

EVALUATES: Final = "alert_evaluate"
ROUTES: Final = "alert_route"
ABOUT_ALERTS: Final = frozenset({EVALUATES, ROUTES})


async def alerts_of(
    database: Queryable, tasks: Mapping[UUID, TaskPayload], orgs: Mapping[UUID, UUID]
) -> dict[UUID, list[AlertRef]]:
    """By task, for the tasks whose operator works with alerts: one statement for all of them, or none."""
    wanted = [
        {"task_id": task_id, "org_id": orgs[task_id], "names": _names(task)}
        for task_id, task in tasks.items()
        if task.operator in ABOUT_ALERTS
    ]
    if not wanted:
        return {}
    alerts: dict[UUID, list[AlertRef]] = {task["task_id"]: [] for task in wanted}
    for record in await database.fetch(queries("alerts")["list_alerts_of_tasks"], wanted):
        values = dict(record)
        alerts[values.pop("task_id")].append(AlertRef(**values))
    return alerts


def _names(task: TaskPayload) -> Any:
    """The definitions that the job names; None: all of the organisation."""
    return list(task.config.get("definitions", ())) if task.operator == EVALUATES else None
