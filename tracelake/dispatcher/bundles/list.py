"""An organisation's bundles: a page of them, the newest first, or one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.user_calls import CALLS
from tracelake.wire.user_messages import BundleAnswer, BundleList, BundleRow, BundlesQuery, UploadRef

UPLOAD = CALLS["upload_bundle"]


async def list_bundles(pool: asyncpg.Pool, org_id: UUID, asked: BundlesQuery) -> BundleList:
    found = await pool.fetch(queries("bundles")["page"], org_id, asked.name, asked.before, asked.limit + 1)
    rows = [BundleRow(**_fields(row)) for row in found[: asked.limit]]
    return BundleList(bundles=rows, next=rows[-1].id if len(found) > asked.limit else None)


async def show_bundle(control: Control, org_id: UUID, bundle_id: UUID) -> BundleAnswer:
    return answer_of(control, await bundle_row(control, org_id, bundle_id))


async def bundle_row(control: Control, org_id: UUID, bundle_id: UUID) -> asyncpg.Record:
    row = await control.pool.fetchrow(queries("bundles")["by_id"], org_id, bundle_id)
    if row is None:
        raise NotFound("no such bundle", where=str(bundle_id))
    return row


def answer_of(control: Control, row: asyncpg.Record) -> BundleAnswer:
    """With how to send the bytes, as long as they may be wanted."""
    wanted = UploadRef(
        method="PUT",
        path="/v1" + UPLOAD.path.format(bundle=row["id"]),
        content_type=UPLOAD.takes_bytes or "",
        most_bytes=control.bundles.max_bytes,
    )
    pending = row["status"] == "Pending"
    return BundleAnswer(**_fields(row), upload=wanted if pending else None, entry_points=list(row["entry_points"]))


def _fields(row: asyncpg.Record) -> dict[str, Any]:
    return {name: row[name] for name in BundleRow.__struct_fields__}
