"""Lists the datasets that a user may see, and shows one with its generations, last commits and dead batches."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.find_key import find_key
from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user.datasets import DatasetDetail, DatasetList, DatasetRow

MOST_COMMITS = 20


async def list_datasets(pool: asyncpg.Pool, user: User) -> DatasetList:
    records = await pool.fetch(queries("user_datasets")["list_datasets"], *user.reads_as)
    return DatasetList(datasets=[DatasetRow(**record) for record in records])


async def show_dataset(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> DatasetDetail:
    sql = queries("user_datasets")["show_dataset"]
    detail = await pool.fetchval(sql, *_asked(user, name_or_uuid), MOST_COMMITS)
    if detail is None:
        raise _unknown(name_or_uuid)
    found = msgspec.json.decode(detail, type=DatasetDetail)
    return msgspec.structs.replace(found, unique_key=await find_key(pool, found.dataset_uuid))


async def find_dataset(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> UUID:
    """The uuid of a dataset that the user may see."""
    found: UUID | None = await pool.fetchval(queries("user_datasets")["find_dataset"], *_asked(user, name_or_uuid))
    if found is None:
        raise _unknown(name_or_uuid)
    return found


def _asked(user: User, name_or_uuid: str) -> tuple[UUID, UUID, str, UUID | None, str | None]:
    uuid = as_uuid(name_or_uuid)
    return *user.reads_as, uuid, None if uuid else name_or_uuid


def _unknown(name_or_uuid: str) -> NotFound:
    return NotFound(
        f"there is no dataset {name_or_uuid}", where=name_or_uuid, hint="`trace datasets list` lists the datasets"
    )


def as_uuid(text: str) -> UUID | None:
    """A published name is never a UUID: names begin with a letter and contain no hyphen."""
    try:
        return UUID(text) if "-" in text else None
    except ValueError:
        return None
