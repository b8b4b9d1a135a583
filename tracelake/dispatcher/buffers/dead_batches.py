"""Lists the batches that the sink refused, and replays one: as it is, or with repaired contents.

A repaired batch is stored beside the original, in the folder of the attempt that published it: the sink reads nowhere
else. Its name is made of publish and content, so that the same repair twice is one object.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from uuid import UUID

import asyncpg

from tracelake.dispatcher.signal import Signal
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.access.storage_locations import buffer_folder, repaired_name
from tracelake.errors import Conflict, NotFound, ObjectExists
from tracelake.ports import ObjectStore
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import Row, find_row, queries
from tracelake.wire.user.datasets import DeadBatchList, DeadBatchQuery, DeadBatchRow, ReplayAnswer


class Publish(Row, frozen=True):
    id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    batch_uri: str
    status: str


async def list_dead_batches(pool: asyncpg.Pool, org_id: UUID, query: DeadBatchQuery) -> DeadBatchList:
    """A page of an organisation's dead batches, the newest first."""
    sql = queries("buffered")
    records = await pool.fetch(sql["list_dead"], org_id, query.before, query.limit + 1, query.dataset)
    batches = [DeadBatchRow(**record) for record in records[: query.limit]]
    following = batches[-1].publish_id if len(records) > query.limit else None
    total = await pool.fetchval(sql["count_dead"], org_id, query.dataset)
    return DeadBatchList(batches=batches, next=following, total=total)


async def replay_batch(
    pool: asyncpg.Pool,
    outbox: Signal,
    org_id: UUID,
    publish_id: UUID,
    repaired: bytes | None,
    *,
    objects: ObjectStore,
    scratch_bucket: str,
) -> ReplayAnswer:
    sql = queries("buffered")
    publish = await find_row(pool, sql["find_publish"], Publish, org_id, publish_id)
    if publish is None:
        raise NotFound("no such publish", where=str(publish_id))
    if publish.status != "Dead":
        raise Conflict(f"the batch is {publish.status}, not Dead", where=str(publish_id), hint="see `trace sink dead`")
    name = None if repaired is None else await _put(objects, scratch_bucket, publish, repaired)
    crash_point("replay_batch.before_commit")
    replayed = await pool.fetchval(sql["replay_dead"], org_id, publish_id, None if name is None else str(name))
    crash_point("replay_batch.after_commit")
    if replayed is None:
        raise Conflict("another call has just replayed it", where=str(publish_id))
    outbox.notify()
    return ReplayAnswer(publish_id=publish_id, batch_uri=str(name or publish.batch_uri))


async def _put(objects: ObjectStore, scratch_bucket: str, publish: Publish, batch: bytes) -> ObjectName:
    folder = buffer_folder(scratch_bucket, publish.dataset_uuid, publish.task_id, publish.attempt)
    name = folder.object(repaired_name(publish.id, hashlib.sha256(batch).hexdigest()))
    with suppress(ObjectExists):
        await asyncio.to_thread(objects.put, name, batch)
    return name
