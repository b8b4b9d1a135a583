"""Shows what an organisation uses, beside its limits. Other organisations are shown to platform admins only."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import asyncpg

from tracelake.dispatcher.identity.show_orgs import show_org
from tracelake.dispatcher.limits.show_org_limits import limits_of
from tracelake.domain.flow.org_limits import LimitName
from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.store.queries import Row, fetch_row, fetch_rows, queries
from tracelake.wire.user.fields import OWN_ORG
from tracelake.wire.user.limits import DatasetUse, LimitUse, OrgUsage

MOST_DATASETS: Final = 200


class SlotsRow(Row, frozen=True):
    name: LimitName
    used: int
    waiting: int


class QueriesOfADay(Row, frozen=True):
    queries: int
    seconds: float


async def show_org_usage(pool: asyncpg.Pool, user: User, org: str) -> OrgUsage:
    org = user.org_slug if org == OWN_ORG else org
    if org != user.org_slug and not user.platform_admin:
        raise NotFound(f"there is no organisation {org!r}", where="org in the path", hint=f"yours is {user.org_slug}")
    org_id, sql = (await show_org(pool, org)).id, queries("org_limits")
    datasets = await pool.fetch(sql["list_datasets"], org_id, MOST_DATASETS)
    of_a_day = await fetch_row(pool, sql["queries_of_a_day"], QueriesOfADay, org_id)
    return OrgUsage(
        org=org,
        limits=await use_of_limits(pool, org_id),
        datasets=[DatasetUse(**row) for row in datasets],
        queries=of_a_day.queries,
        query_seconds=of_a_day.seconds,
    )


async def use_of_limits(pool: asyncpg.Pool, org_id: UUID) -> list[LimitUse]:
    sql = queries("org_limits")
    slots = await fetch_rows(pool, sql["list_slots"], SlotsRow, org_id)
    used: dict[LimitName, int] = {row.name: row.used for row in slots}
    used["object_bytes"] = await pool.fetchval(sql["measure_org"], org_id)
    waiting = {row.name: row.waiting for row in slots}
    return [
        LimitUse(limit=row.limit, most=row.most, used=used.get(row.limit), waiting=waiting.get(row.limit, 0))
        for row in await limits_of(pool, org_id)
    ]
