"""A dataset by name or uuid: its generations, what is in force in each, its last commits, ranges and dead batches."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import DatasetDetail

SHOWN = 20


async def show_dataset(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> DatasetDetail:
    uuid = as_uuid(name_or_uuid)
    name = None if uuid else name_or_uuid
    sql = queries("user_datasets")["show_dataset"]
    found = await pool.fetchval(sql, user.org_id, user.id, user.role == "admin", uuid, name, SHOWN)
    if found is None:
        raise NotFound(
            f"there is no dataset {name_or_uuid}",
            where=name_or_uuid,
            hint="`trace datasets list` shows those there are",
        )
    return msgspec.json.decode(found, type=DatasetDetail)


def as_uuid(text: str) -> UUID | None:
    """A published name is never one: names begin with a letter and hold no hyphen."""
    try:
        return UUID(text) if "-" in text else None
    except ValueError:
        return None
