"""Lists an organisation's bundles, the newest first, or shows one."""

from __future__ import annotations

from uuid import UUID

import asyncpg
import msgspec

from tracelake.errors import NotFound
from tracelake.store.queries import queries
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.user.bundles import BundleAnswer, BundleList, BundleRow, BundlesQuery, UploadRef

UPLOAD = CALLS["upload_bundle"]


class StoredBundle(BundleRow, frozen=True):
    location: str
    entry_points: list[str]


async def list_bundles(pool: asyncpg.Pool, org_id: UUID, query: BundlesQuery) -> BundleList:
    sql = queries("bundles")["list_bundles"]
    records = await pool.fetch(sql, org_id, query.name, query.before, query.limit + 1)
    bundles = [BundleRow(**record) for record in records[: query.limit]]
    return BundleList(bundles=bundles, next=bundles[-1].id if len(records) > query.limit else None)


async def show_bundle(pool: asyncpg.Pool, max_bytes: int, org_id: UUID, bundle_id: UUID) -> BundleAnswer:
    return bundle_answer(await get_bundle(pool, org_id, bundle_id), max_bytes)


async def get_bundle(pool: asyncpg.Pool, org_id: UUID, bundle_id: UUID) -> StoredBundle:
    record = await pool.fetchrow(queries("bundles")["find_bundle"], org_id, bundle_id, None)
    if record is None:
        raise NotFound("no such bundle", where=str(bundle_id))
    return StoredBundle(**record)


async def find_by_hash(pool: asyncpg.Pool, org_id: UUID, sha256: str) -> StoredBundle | None:
    record = await pool.fetchrow(queries("bundles")["find_bundle"], org_id, None, sha256)
    return StoredBundle(**record) if record else None


def bundle_answer(bundle: StoredBundle, max_bytes: int) -> BundleAnswer:
    """Includes how to upload the bytes while the bundle is pending."""
    upload = UploadRef(
        method="PUT",
        path="/v1" + UPLOAD.path.format(bundle=bundle.id),
        content_type=UPLOAD.takes_bytes or "",
        most_bytes=max_bytes,
    )
    values = msgspec.structs.asdict(bundle)
    del values["location"]
    return BundleAnswer(**values, upload=upload if bundle.status == "Pending" else None)
