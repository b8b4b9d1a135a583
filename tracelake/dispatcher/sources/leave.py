"""Sources of DAG versions that are no longer active are stopped: canceled, told to stop, or removed."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.store.queries import queries

Connection = asyncpg.pool.PoolConnectionProxy


async def leave_sources(connection: Connection, org_id: UUID | None = None, dag_name: str | None = None) -> int:
    """In the caller's transaction; of all DAGs, or of one. How many were told to stop or are gone."""
    sql = queries("sources")
    leaving = [row["job_id"] for row in await connection.fetch(sql["lock_leaving"], org_id, dag_name)]
    return int(await connection.fetchval(sql["leave"], leaving)) if leaving else 0
