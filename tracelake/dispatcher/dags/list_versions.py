"""The versions of a DAG, the newest first."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.user_messages import Version, VersionList


async def list_versions(pool: asyncpg.Pool, org_id: UUID, dag_name: str) -> VersionList:
    rows = await pool.fetch(queries("user_dags")["list_versions"], org_id, dag_name)
    if not rows:
        raise NotFound(f"there is no DAG {dag_name}", where=dag_name, hint="`trace dag list` shows those there are")
    return VersionList(versions=[Version(**dict(row)) for row in rows])
