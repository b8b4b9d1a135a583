"""A person adds, changes or removes a channel. Its secret is written here, and shown to nobody after that."""

from __future__ import annotations

import secrets

import asyncpg
import msgspec
from msgspec import UNSET

from tracelake.dispatcher.alerts.show import no_channel, show_channel
from tracelake.dispatcher.control import Control
from tracelake.domain.alerts import why_no_url
from tracelake.errors import Conflict, InvalidRequest
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.alert_messages import ChannelChange, ChannelMade, ChannelRequest, ChannelRow, Removed


async def create_channel(control: Control, user: User, asked: ChannelRequest) -> ChannelMade:
    _check(asked.url)
    made = None if asked.secret is not None else secrets.token_urlsafe(32)
    done = await control.pool.fetchval(
        queries("alerts")["create_channel"],
        user.org_id,
        asked.name,
        asked.kind,
        asked.url,
        asked.secret or made,
        user.id,
    )
    if done is None:
        raise Conflict(f"there is a channel {asked.name!r} already", where="/name", hint="change it, or rename this")
    shown = await show_channel(control.pool, user.org_id, asked.name)
    return ChannelMade(**msgspec.structs.asdict(shown), secret=made)


async def update_channel(control: Control, user: User, name: str, asked: ChannelChange) -> ChannelRow:
    url = None if asked.url is UNSET else asked.url
    secret = None if asked.secret is UNSET else asked.secret
    if url is not None:
        _check(url)
    if await control.pool.fetchval(queries("alerts")["update_channel"], user.org_id, name, url, secret) is None:
        raise await no_channel(control.pool, user.org_id, name)
    return await show_channel(control.pool, user.org_id, name)


async def delete_channel(control: Control, user: User, name: str) -> Removed:
    shown = await show_channel(control.pool, user.org_id, name)
    try:
        gone = await control.pool.fetchval(queries("alerts")["delete_channel"], user.org_id, name)
    except asyncpg.ForeignKeyViolationError:
        said = ", ".join(shown.used_by[:5])
        raise Conflict(
            f"the channel is used by {said}" if said else "an alert has just begun to use the channel",
            where="channel in the path",
            hint="take it out of their channels first",
        ) from None
    if gone is None:
        raise await no_channel(control.pool, user.org_id, name)
    return Removed(name=name)


def _check(url: str) -> None:
    reason = why_no_url(url)
    if reason is not None:
        raise InvalidRequest(f"this is no address for a webhook: {reason}", where="/url")
