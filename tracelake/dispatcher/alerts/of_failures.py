"""Alerts of tasks that have failed for good, as work items of the delivery process: one for each channel.

A setting names the alert; an organisation that defines one of that name hears of its own tasks. What has changed since
the outbox entry was written counts: a task that was retried or completed late raises nothing.
"""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import FailureAlert, FailuresAnswer, FailuresRequest


async def failure_alerts(control: Control, asked: FailuresRequest) -> FailuresAnswer:
    rows = await control.pool.fetch(queries("alerts")["failures"], asked.task_ids, control.failure_alert)
    return FailuresAnswer(alerts=[FailureAlert(**dict(row)) for row in rows])
