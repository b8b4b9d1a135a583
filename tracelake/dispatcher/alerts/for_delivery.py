"""What the delivery process reads: where alerts go, and the alerts of tasks that have failed for good."""

from __future__ import annotations

import asyncpg

from tracelake.store.queries import queries
from tracelake.wire.user.alerts import (
    FailureAlert,
    FailuresAnswer,
    FailuresRequest,
    Target,
    TargetsAnswer,
    TargetsRequest,
)


async def alert_targets(pool: asyncpg.Pool, request: TargetsRequest) -> TargetsAnswer:
    """The current address and secret of each channel."""
    records = await pool.fetch(
        queries("alerts")["list_targets"],
        [target.org_id for target in request.targets],
        [target.alert_definition_id for target in request.targets],
        [target.channel for target in request.targets],
    )
    return TargetsAnswer(targets=[Target(**record) for record in records])


async def failure_alerts(pool: asyncpg.Pool, alert: str, request: FailuresRequest) -> FailuresAnswer:
    """One alert per channel, for organisations that define an alert of this name.

    Tasks that were retried or completed since the outbox entry was written are left out.
    """
    records = await pool.fetch(queries("alerts")["list_failures"], request.task_ids, alert)
    return FailuresAnswer(alerts=[FailureAlert(**record) for record in records])
