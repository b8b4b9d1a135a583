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
from tracelake.wire.alert_messages import FailureAlert


def notify_failures(dsn: str, alerts: Sequence[FailureAlert]) -> None:
    """DatabaseUnavailable if data Postgres is away; said again, it adds nothing."""
    for one in alerts:
        store_items(dsn, one.org_id, one.task_id, [_item(one)])


def _item(one: FailureAlert) -> Item:
    key = f"task:{one.task_id}"
    told = {
        "alert_definition_id": str(one.alert_definition_id),
        "dedupe_key": key,
        "event_time": one.failed_at.isoformat(),
        "severity": one.severity,
        "payload": {
            "task_id": str(one.task_id),
            "dag": one.dag,
            "job": one.job,
            "attempt": one.attempt,
            "fault": one.fault,
            "error": one.error,
        },
    }
    event = {name: told.get(name) for name in COLUMNS}
    return Item(
        delivery_id(OrgId(one.org_id), one.alert_definition_id, key, one.channel),
        one.alert_definition_id,
        one.alert_name,
        key,
        one.channel,
        one.severity,
        one.failed_at,
        json.dumps(event),
    )
