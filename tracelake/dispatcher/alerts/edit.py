"""A person defines, changes or removes an alert. Its name stays: jobs name it in their DAGs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
from msgspec import UNSET

from tracelake.dispatcher.alerts.show import no_alert, show_alert
from tracelake.dispatcher.control import Control
from tracelake.domain.alerts import MOST_DEFINITIONS
from tracelake.domain.suggest import closest
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import AlertChange, AlertRequest, AlertRow, Removed

Connection = asyncpg.pool.PoolConnectionProxy


async def create_alert(control: Control, user: User, asked: AlertRequest) -> AlertRow:
    sql, org = queries("alerts"), user.org_id
    async with control.pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_org"], org)
        if await connection.fetchval(sql["count_definitions"], org) >= MOST_DEFINITIONS:
            raise Conflict(f"an organisation has at most {MOST_DEFINITIONS} alerts", where="/name")
        made = await connection.fetchval(
            sql["create_definition"],
            org,
            asked.name,
            asked.severity,
            asked.description,
            asked.enabled,
            dict(asked.params),
            asked.max_age_seconds,
            user.id,
        )
        if made is None:
            raise Conflict(f"there is an alert {asked.name!r} already", where="/name", hint="change it, or rename this")
        await _link(connection, org, made, asked.channels)
        return await show_alert(connection, org, asked.name)


async def update_alert(control: Control, user: User, name: str, asked: AlertChange) -> AlertRow:
    sql, org = queries("alerts"), user.org_id
    async with control.pool.acquire() as connection, connection.transaction():
        found = await connection.fetchval(
            sql["update_definition"],
            org,
            name,
            _given(asked.severity),
            _given(asked.description),
            _given(asked.enabled),
            None if asked.params is UNSET else dict(asked.params),
            asked.max_age_seconds is not UNSET,
            _given(asked.max_age_seconds),
        )
        if found is None:
            raise await no_alert(connection, org, name)
        if asked.channels is not UNSET:
            await connection.execute(sql["unlink_channels"], org, found)
            await _link(connection, org, found, asked.channels)
        return await show_alert(connection, org, name)


async def delete_alert(control: Control, user: User, name: str) -> Removed:
    if await control.pool.fetchval(queries("alerts")["delete_definition"], user.org_id, name) is None:
        raise await no_alert(control.pool, user.org_id, name)
    return Removed(name=name)


async def _link(connection: Connection, org: UUID, alert: UUID, names: Sequence[str]) -> None:
    rows = await connection.fetch(queries("alerts")["link_channels"], org, alert, list(names))
    there = {row["name"] for row in rows}
    for place, name in enumerate(names):
        if name not in there:
            known = [row["name"] for row in await connection.fetch(queries("alerts")["channel_names"], org)]
            hint = closest(name, known) or "add it first: `trace alert channel create`"
            raise InvalidRequest(f"there is no channel {name!r}", where=f"/channels/{place}", hint=hint)


def _given(value: Any) -> Any:
    return None if value is UNSET else value
