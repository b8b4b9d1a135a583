"""Alerts of an organisation, and rows of them for the standard dataset of `docs/how-to/raise_alerts.md`."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from tests.support import ROOT
from tests.support.dispatcher.control import Org
from tests.support.systems.sink import SinkSystem
from tracelake.dispatcher.alerts.edit import create_alert, update_alert
from tracelake.dispatcher.alerts.edit_channels import create_channel
from tracelake.store.identity import find_user
from tracelake.wire.user.alerts import AlertChange, AlertRequest, ChannelRequest

PAGE = (ROOT / "docs" / "how-to" / "raise_alerts.md").read_text(encoding="utf-8")
STANDARD = "publish:\n" + re.findall(r"\npublish:\n(.*?)```", PAGE, re.DOTALL)[0]


async def alerts_of(system: SinkSystem, slug: str, url: str = "https://example.org/") -> dict[str, UUID]:
    """Alert `whales` to two channels, `quiet` to none, `off` disabled."""
    control = system.walk.control
    user = await find_user(control.pool, f"test|{slug}")
    assert user is not None
    for name in ("ops", "page"):
        await create_channel(control.pool, user, ChannelRequest(name=name, url=url, secret="s" * 20))
    made = {}
    for name, channels in (("whales", ["ops", "page"]), ("quiet", []), ("off", ["ops"])):
        done = await create_alert(control.pool, user, AlertRequest(name=name, severity="critical", channels=channels))
        made[name] = done.alert_definition_id
    await update_alert(control.pool, user, "off", AlertChange(enabled=False))
    return made


def event(alert: UUID | str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "alert_definition_id": str(alert),
        "dedupe_key": key,
        "event_time": "2026-01-31T12:00:00.25+02:00",
        "severity": "critical",
        **more,
    }


async def publish(system: SinkSystem, rows: list[dict[str, Any]], org: Org | None = None) -> None:
    producer = await system.producer(org)
    await producer.publish(rows)
    await producer.complete()
