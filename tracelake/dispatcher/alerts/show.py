"""Lists and shows an organisation's alerts and channels, without secrets."""

from __future__ import annotations

from uuid import UUID

from tracelake.domain.text.suggest import closest
from tracelake.errors import NotFound
from tracelake.store.queries import Queryable, fetch_column, queries
from tracelake.wire.user.alerts import AlertList, AlertRow, ChannelList, ChannelRow


async def list_alerts(database: Queryable, org_id: UUID) -> AlertList:
    records = await database.fetch(queries("alerts")["list_definitions"], org_id, None)
    return AlertList(definitions=[AlertRow(**record) for record in records])


async def show_alert(database: Queryable, org_id: UUID, name: str) -> AlertRow:
    record = await database.fetchrow(queries("alerts")["list_definitions"], org_id, name)
    if record is None:
        raise await no_alert(database, org_id, name)
    return AlertRow(**record)


async def list_channels(database: Queryable, org_id: UUID) -> ChannelList:
    records = await database.fetch(queries("alerts")["list_channels"], org_id, None)
    return ChannelList(channels=[ChannelRow(**record) for record in records])


async def show_channel(database: Queryable, org_id: UUID, name: str) -> ChannelRow:
    record = await database.fetchrow(queries("alerts")["list_channels"], org_id, name)
    if record is None:
        raise await no_channel(database, org_id, name)
    return ChannelRow(**record)


async def channel_names(database: Queryable, org_id: UUID) -> list[str]:
    return await fetch_column(database, queries("alerts")["list_channel_names"], org_id)


async def no_alert(database: Queryable, org_id: UUID, name: str) -> NotFound:
    known = await fetch_column(database, queries("alerts")["list_definition_names"], org_id)
    return NotFound(f"there is no alert {name!r}", where="alert in the path", hint=closest(name, known))


async def no_channel(database: Queryable, org_id: UUID, name: str) -> NotFound:
    known = await channel_names(database, org_id)
    return NotFound(f"there is no channel {name!r}", where="channel in the path", hint=closest(name, known))
