"""Creates, changes and deletes alert channels. A generated secret is returned once and never shown again."""

from __future__ import annotations

import secrets

import asyncpg
import msgspec
from msgspec import UNSET

from tracelake.dispatcher.alerts.show import no_channel, show_channel
from tracelake.domain.alerts import why_no_url
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.alerts import ChannelChange, ChannelMade, ChannelRequest, ChannelRow, Removed


async def create_channel(pool: asyncpg.Pool, user: User, request: ChannelRequest) -> ChannelMade:
    _check(request.url)
    generated = None if request.secret is not None else secrets.token_urlsafe(32)
    channel_id = await pool.fetchval(
        queries("alerts")["create_channel"],
        user.org_id,
        request.name,
        request.kind,
        request.url,
        request.secret or generated,
        user.id,
    )
    if channel_id is None:
        taken = f"there is a channel {request.name!r} already"
        raise Conflict(taken, where="/name", hint="change it, or choose another name")
    channel = await show_channel(pool, user.org_id, request.name)
    return ChannelMade(**msgspec.structs.asdict(channel), secret=generated)


async def update_channel(pool: asyncpg.Pool, user: User, name: str, request: ChannelChange) -> ChannelRow:
    url = None if request.url is UNSET else request.url
    secret = None if request.secret is UNSET else request.secret
    if url is not None:
        _check(url)
    if await pool.fetchval(queries("alerts")["update_channel"], user.org_id, name, url, secret) is None:
        raise await no_channel(pool, user.org_id, name)
    return await show_channel(pool, user.org_id, name)


async def delete_channel(pool: asyncpg.Pool, user: User, name: str) -> Removed:
    channel = await show_channel(pool, user.org_id, name)
    try:
        deleted = await pool.fetchval(queries("alerts")["delete_channel"], user.org_id, name)
    except asyncpg.ForeignKeyViolationError:
        users = ", ".join(channel.used_by[:5])
        raise Conflict(
            f"the channel is used by {users}" if users else "an alert has just begun to use the channel",
            where="channel in the path",
            hint="remove it from their channels first",
        ) from None
    if deleted is None:
        raise await no_channel(pool, user.org_id, name)
    return Removed(name=name)


def _check(url: str) -> None:
    reason = why_no_url(url)
    if reason is not None:
        raise InvalidRequest(f"this is not a webhook address: {reason}", where="/url")
