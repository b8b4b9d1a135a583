"""A person has a dead batch tried again: as it lies, after what was wrong has been mended, or repaired in its place.

A repaired batch is put beside the old one, in the folder of the attempt that published it: the sink reads nowhere else.
It is named by publish and content, so that the same repair twice is one.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from uuid import UUID

import asyncpg

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import ObjectName
from tracelake.domain.storage_locations import buffer_folder, repaired_name
from tracelake.errors import Conflict, NotFound, ObjectExists
from tracelake.runtime.crash_points import crash_point
from tracelake.store.queries import queries
from tracelake.wire.user_messages import ReplayAnswer


async def replay_batch(control: Control, org_id: UUID, publish_id: UUID, batch: bytes | None) -> ReplayAnswer:
    sql = queries("buffered")
    row = await control.pool.fetchrow(sql["find_publish"], org_id, publish_id)
    if row is None:
        raise NotFound("no such publish", where=str(publish_id))
    if row["status"] != "Dead":
        raise Conflict(f"the batch is {row['status']}, not Dead", where=str(publish_id), hint="see `trace sink dead`")
    put = None if batch is None else await _put(control, row, batch)
    crash_point("replay_batch.before_commit")
    again = await control.pool.fetchval(sql["replay"], org_id, publish_id, None if put is None else str(put))
    crash_point("replay_batch.after_commit")
    if again is None:
        raise Conflict("somebody else has just had it tried again", where=str(publish_id))
    control.outbox_signal.notify()
    return ReplayAnswer(publish_id=publish_id, batch_uri=str(put or row["batch_uri"]))


async def _put(control: Control, row: asyncpg.Record, batch: bytes) -> ObjectName:
    folder = buffer_folder(control.places.scratch_bucket, row["dataset_uuid"], row["task_id"], row["attempt"])
    name = folder.object(repaired_name(row["id"], hashlib.sha256(batch).hexdigest()))
    with suppress(ObjectExists):
        await asyncio.to_thread(control.objects.put, name, batch)
    return name
