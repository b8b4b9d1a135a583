"""Lists DAGs that have not caught up since another version of them, or of what they read, became active."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.store.queries import Row, fetch_rows, queries


class DagBehind(Row, frozen=True):
    dag: str
    since: datetime
    tasks: int


async def list_behind(pool: asyncpg.Pool, org_id: UUID, dags: Sequence[str] | None = None) -> list[DagBehind]:
    """Of all DAGs of the organisation, or of these."""
    return await fetch_rows(pool, queries("behind")["list_behind"], DagBehind, org_id, dags)
