"""Whether the organisations and roles of `login_rules` exist."""

from __future__ import annotations

import asyncio

from tracelake.lite.doctor.run import Finding
from tracelake.settings import Settings
from tracelake.store.db import OUTAGES, open_pool
from tracelake.store.login_rules import unusable_rules

FIX = "create it (`trace org create`, `trace role create`), or change the setting"


def examine_login_rules(settings: Settings) -> list[Finding]:
    """Only its own processes reach the database of `trace up`: there, the Dispatcher checks when it starts."""
    if not settings.login_rules:
        return []
    count, dsn = len(settings.login_rules), settings.state.dsn
    if dsn is None:
        return [Finding("login rules", ok=True, found=f"{count}; the log of the Dispatcher names those it cannot use")]
    try:
        reasons = asyncio.run(_reasons(settings, dsn.get_secret_value()))
    except OUTAGES as away:
        return [Finding("login rules", ok=None, found=f"the state database does not answer: {away}", fix="start it")]
    findings = [Finding("login rules", ok=False, found=reason, fix=FIX) for reason in reasons]
    return findings or [Finding("login rules", ok=True, found=f"{count}, of known organisations and roles")]


async def _reasons(settings: Settings, dsn: str) -> list[str]:
    async with open_pool(dsn, name="doctor", max_size=1) as pool:
        return await unusable_rules(pool, settings.login_rules)
