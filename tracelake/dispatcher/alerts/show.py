"""An organisation's alerts and channels, for people: never a secret."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.domain.suggest import closest
from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import AlertList, AlertRow, ChannelList, ChannelRow

Reading = asyncpg.Pool | asyncpg.pool.PoolConnectionProxy


async def list_alerts(pool: Reading, org_id: UUID) -> AlertList:
    rows = await pool.fetch(queries("alerts")["list_definitions"], org_id, None)
    return AlertList(definitions=[_alert(row) for row in rows])


async def show_alert(pool: Reading, org_id: UUID, name: str) -> AlertRow:
    row = await pool.fetchrow(queries("alerts")["list_definitions"], org_id, name)
    if row is None:
        raise await no_alert(pool, org_id, name)
    return _alert(row)


async def list_channels(pool: Reading, org_id: UUID) -> ChannelList:
    rows = await pool.fetch(queries("alerts")["list_channels"], org_id, None)
    return ChannelList(channels=[ChannelRow(**dict(row)) for row in rows])


async def show_channel(pool: Reading, org_id: UUID, name: str) -> ChannelRow:
    row = await pool.fetchrow(queries("alerts")["list_channels"], org_id, name)
    if row is None:
        raise await no_channel(pool, org_id, name)
    return ChannelRow(**dict(row))


async def no_alert(pool: Reading, org_id: UUID, name: str) -> NotFound:
    known = [row["name"] for row in await pool.fetch(queries("alerts")["definition_names"], org_id)]
    return NotFound(f"there is no alert {name!r}", where="alert in the path", hint=closest(name, known))


async def no_channel(pool: Reading, org_id: UUID, name: str) -> NotFound:
    known = [row["name"] for row in await pool.fetch(queries("alerts")["channel_names"], org_id)]
    return NotFound(f"there is no channel {name!r}", where="channel in the path", hint=closest(name, known))


def _alert(row: asyncpg.Record) -> AlertRow:
    return AlertRow(**{**dict(row), "params": msgspec.json.decode(row["params"])})
