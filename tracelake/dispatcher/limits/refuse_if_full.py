"""Refuses calls that lead to more files, while their organisation stores as much as it may."""

from __future__ import annotations

from uuid import UUID

from tracelake.errors import LimitReached
from tracelake.store.queries import Queryable, Row, find_row, queries


class FullStorage(Row, frozen=True):
    bytes: int
    most: int


async def refuse_if_full(database: Queryable, org_id: UUID) -> None:
    full = await find_row(database, queries("org_limits")["storage_of"], FullStorage, org_id)
    if full is not None:
        raise LimitReached(storage_sentence(full.bytes, full.most), where="object_bytes", hint=FREE)


def storage_sentence(stored: int, most: int) -> str:
    return f"the organisation stores {stored:,} bytes, and its limit is {most:,} (object_bytes)"


FREE = (
    "delete what is not needed (`trace dag delete`), or ask a platform admin to raise the limit (`trace org limits`);"
    " `trace org usage` shows what is stored"
)
