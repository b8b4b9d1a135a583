"""Stops the sources of DAG versions that are neither active nor built: cancels, drains or deletes them."""

from __future__ import annotations

from uuid import UUID

from tracelake.store.queries import Connection, fetch_column, queries


async def retire_sources(connection: Connection, org_id: UUID | None = None, dag_name: str | None = None) -> int:
    """In the caller's transaction, for one DAG or all. Returns how many were drained or deleted."""
    sql = queries("sources")
    retired = await fetch_column(connection, sql["lock_retired"], org_id, dag_name)
    return int(await connection.fetchval(sql["retire_sources"], retired)) if retired else 0
