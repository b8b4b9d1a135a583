"""Shows the limits of an organisation: its own, and the defaults of those that it has not."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from msgspec.structs import replace

from tracelake.dispatcher.identity.show_orgs import show_org
from tracelake.domain.flow.org_limits import LIMITS, LimitName
from tracelake.store.queries import Queryable, Row, fetch_rows, queries
from tracelake.wire.user.limits import LimitRow, OrgLimits


class StoredLimit(Row, frozen=True):
    name: LimitName
    most: int | None
    own: bool
    set_by: str | None
    set_at: datetime


async def show_org_limits(database: Queryable, org: str) -> OrgLimits:
    return OrgLimits(org=org, limits=await limits_of(database, (await show_org(database, org)).id))


async def limits_of(database: Queryable, org_id: UUID) -> list[LimitRow]:
    rows = await fetch_rows(database, queries("org_limits")["list_limits"], StoredLimit, org_id)
    stored = {row.name: row for row in rows}
    return [_shown(name, stored.get(name)) for name in LIMITS]


def _shown(name: LimitName, stored: StoredLimit | None) -> LimitRow:
    shown = LimitRow(limit=name, unit=LIMITS[name].unit, about=LIMITS[name].about)
    if stored is None:
        return shown
    if not stored.own:
        return replace(shown, most=stored.most)
    return replace(shown, most=stored.most, own=True, set_by=stored.set_by, set_at=stored.set_at)
