"""Lists DAGs and their versions, and shows one with the jobs of its active, or newest, version."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.user.dags import DagDetail, DagList, DagRow, JobRow, Version, VersionList


async def list_dags(pool: asyncpg.Pool, org_id: UUID) -> DagList:
    return DagList(dags=[DagRow(**record) for record in await pool.fetch(queries("dags")["list_dags"], org_id)])


async def list_versions(pool: asyncpg.Pool, org_id: UUID, dag_name: str) -> VersionList:
    """The newest first."""
    records = await pool.fetch(queries("dags")["list_versions"], org_id, dag_name)
    if not records:
        raise NotFound(f"there is no DAG {dag_name!r}", where=dag_name, hint="`trace dag list` lists the DAGs")
    return VersionList(versions=[Version(**record) for record in records])


async def show_dag(pool: asyncpg.Pool, org_id: UUID, dag_name: str) -> DagDetail:
    sql, versions = queries("dags"), (await list_versions(pool, org_id, dag_name)).versions
    active = next((version.dag_version_id for version in versions if version.active), None)
    shown = active or versions[0].dag_version_id
    return DagDetail(
        name=dag_name,
        active_version=active,
        versions=versions,
        shown_version=shown,
        jobs=[JobRow(**record) for record in await pool.fetch(sql["list_jobs"], org_id, shown)],
        yaml=await pool.fetchval(sql["find_version"], org_id, dag_name, shown),
    )
