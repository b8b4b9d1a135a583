"""Every dataset that a user may know of, with its last commit."""

from __future__ import annotations

import asyncpg

from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import DatasetList, DatasetRow


async def list_datasets(pool: asyncpg.Pool, user: User) -> DatasetList:
    sql = queries("user_datasets")["list_datasets"]
    rows = await pool.fetch(sql, user.org_id, user.id, user.role == "admin")
    return DatasetList(datasets=[DatasetRow(**dict(row)) for row in rows])
