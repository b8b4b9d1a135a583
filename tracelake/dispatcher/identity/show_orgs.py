"""Lists and shows organisations, for platform admins."""

from __future__ import annotations

from tracelake.errors import NotFound
from tracelake.store.queries import Queryable, queries
from tracelake.wire.user.identity import OrgList, OrgRow


async def list_orgs(database: Queryable) -> OrgList:
    records = await database.fetch(queries("orgs")["list_orgs"], None)
    return OrgList(orgs=[OrgRow(**record) for record in records])


async def show_org(database: Queryable, org: str) -> OrgRow:
    record = await database.fetchrow(queries("orgs")["list_orgs"], org)
    if record is None:
        raise NotFound(f"there is no organisation {org!r}", where="org in the path", hint="`trace org list` lists them")
    return OrgRow(**record)
