"""Creates, changes and deletes alert definitions. A definition's name never changes: jobs refer to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
from msgspec import UNSET

from tracelake.dispatcher.alerts.show import channel_names, no_alert, show_alert
from tracelake.domain.alerts import MOST_DEFINITIONS
from tracelake.domain.text.suggest import closest
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import Connection, fetch_column, queries
from tracelake.wire.user.alerts import AlertChange, AlertRequest, AlertRow, Removed


async def create_alert(pool: asyncpg.Pool, user: User, request: AlertRequest) -> AlertRow:
    sql, org = queries("alerts"), user.org_id
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(sql["lock_org"], org)
        if await connection.fetchval(sql["count_definitions"], org) >= MOST_DEFINITIONS:
            raise Conflict(f"an organisation has at most {MOST_DEFINITIONS} alerts", where="/name")
        alert_id = await connection.fetchval(
            sql["create_definition"],
            org,
            request.name,
            request.severity,
            request.description,
            request.enabled,
            dict(request.params),
            request.max_age_seconds,
            user.id,
        )
        if alert_id is None:
            taken = f"there is an alert {request.name!r} already"
            raise Conflict(taken, where="/name", hint="change it, or choose another name")
        await _link(connection, org, alert_id, request.channels)
        return await show_alert(connection, org, request.name)


async def update_alert(pool: asyncpg.Pool, user: User, name: str, request: AlertChange) -> AlertRow:
    sql, org = queries("alerts"), user.org_id
    async with pool.acquire() as connection, connection.transaction():
        alert_id = await connection.fetchval(
            sql["update_definition"],
            org,
            name,
            _value(request.severity),
            _value(request.description),
            _value(request.enabled),
            None if request.params is UNSET else dict(request.params),
            request.max_age_seconds is not UNSET,
            _value(request.max_age_seconds),
        )
        if alert_id is None:
            raise await no_alert(connection, org, name)
        if request.channels is not UNSET:
            await connection.execute(sql["unlink_channels"], org, alert_id)
            await _link(connection, org, alert_id, request.channels)
        return await show_alert(connection, org, name)


async def delete_alert(pool: asyncpg.Pool, user: User, name: str) -> Removed:
    if await pool.fetchval(queries("alerts")["delete_definition"], user.org_id, name) is None:
        raise await no_alert(pool, user.org_id, name)
    return Removed(name=name)


async def _link(connection: Connection, org: UUID, alert_id: UUID, names: Sequence[str]) -> None:
    existing = await fetch_column(connection, queries("alerts")["link_channels"], org, alert_id, list(names))
    for position, name in enumerate(names):
        if name not in existing:
            hint = closest(name, await channel_names(connection, org)) or "add it first: `trace alert channel create`"
            raise InvalidRequest(f"there is no channel {name!r}", where=f"/channels/{position}", hint=hint)


def _value(value: Any) -> Any:
    return None if value is UNSET else value
