"""Where alerts go, for the delivery process alone: address and secret of each channel, as they are now."""

from __future__ import annotations

from tracelake.dispatcher.control import Control
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import Target, TargetsAnswer, TargetsRequest


async def alert_targets(control: Control, asked: TargetsRequest) -> TargetsAnswer:
    rows = await control.pool.fetch(
        queries("alerts")["targets"],
        [target.org_id for target in asked.targets],
        [target.alert_definition_id for target in asked.targets],
        [target.channel for target in asked.targets],
    )
    return TargetsAnswer(targets=[Target(**dict(row)) for row in rows])
