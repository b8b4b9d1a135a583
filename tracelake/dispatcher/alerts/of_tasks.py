"""Which alerts a task is about, as they are when it is claimed. Only jobs that evaluate or route alerts are looked up.

A job that evaluates names its definitions and is told those that are enabled. One that routes is told all that are,
with the names of their channels; addresses and secrets reach neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries
from tracelake.wire.task_messages import AlertRef, TaskPayload

EVALUATES: Final = "alert_evaluate"
ROUTES: Final = "alert_route"
ABOUT_ALERTS: Final = frozenset({EVALUATES, ROUTES})


async def alerts_of(
    control: Control, tasks: Mapping[UUID, TaskPayload], orgs: Mapping[UUID, UUID]
) -> dict[UUID, list[AlertRef]]:
    """The alerts of those tasks that are about any: one statement for all of them, none if no task is."""
    asked = [
        {"task_id": task, "org_id": orgs[task], "names": _names(item)}
        for task, item in tasks.items()
        if item.operator in ABOUT_ALERTS
    ]
    if not asked:
        return {}
    found: dict[UUID, list[AlertRef]] = {invocation["task_id"]: [] for invocation in asked}
    for row in await control.pool.fetch(queries("alerts")["alerts_of_tasks"], asked):
        found[row["task_id"]].append(
            AlertRef(
                alert_definition_id=row["id"],
                name=row["name"],
                severity=row["severity"],
                params=msgspec.json.decode(row["params"]),
                channels=list(row["channels"]),
            )
        )
    return found


def _names(task_payload: TaskPayload) -> Any:
    """Those that its job names; None: all of the organisation's."""
    return list(task_payload.config.get("definitions", ())) if task_payload.operator == EVALUATES else None
