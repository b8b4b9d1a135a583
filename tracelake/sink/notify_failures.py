"""Tasks that have failed for good become work items of the delivery process, once for each task and channel.

Workers and the sink alone may add such items, so the Dispatcher's outbox entry comes here by the Buffer Queue. What is
believed is the Dispatcher's record of the task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tracelake.data.delivery_items import Item, store_items
from tracelake.domain.alerts import COLUMNS
from tracelake.domain.ids import OrgId, delivery_id
from tracelake.wire.user.alerts import FailureAlert


def notify_failures(dsn: str, alerts: Sequence[FailureAlert]) -> None:
    """Idempotent. DatabaseUnavailable if data Postgres does not answer."""
    for alert in alerts:
        store_items(dsn, alert.org_id, alert.task_id, [_item(alert)])


def _item(failure_alert: FailureAlert) -> Item:
    key = f"task:{failure_alert.task_id}"
    fields = {
        "alert_definition_id": str(failure_alert.alert_definition_id),
        "dedupe_key": key,
        "event_time": failure_alert.failed_at.isoformat(),
        "severity": failure_alert.severity,
        "payload": {
            "task_id": str(failure_alert.task_id),
            "dag": failure_alert.dag,
            "job": failure_alert.job,
            "attempt": failure_alert.attempt,
            "fault": failure_alert.fault,
            "error": failure_alert.error,
        },
    }
    event = {name: fields.get(name) for name in COLUMNS}
    return Item(
        delivery_id(OrgId(failure_alert.org_id), failure_alert.alert_definition_id, key, failure_alert.channel),
        failure_alert.alert_definition_id,
        failure_alert.alert_name,
        key,
        failure_alert.channel,
        failure_alert.severity,
        failure_alert.failed_at,
        json.dumps(event),
    )
