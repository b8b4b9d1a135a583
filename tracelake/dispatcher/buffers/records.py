"""Returns the publish records of batches and the declarations of their tables to the sink.

The sink relies on these records alone, never on a queue's message or the contents of a batch.
"""

from __future__ import annotations

from contextlib import suppress

import asyncpg

from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.storage_locations import buffer_folder, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.store.queries import queries
from tracelake.wire.buffer_messages import BufferAnswer, BufferRecord, BufferRequest, BufferTable


async def buffer_records(pool: asyncpg.Pool, scratch_bucket: str, request: BufferRequest) -> BufferAnswer:
    sql = queries("buffered")
    publishes = await pool.fetch(sql["list_publishes"], request.publish_ids) if request.publish_ids else []
    datasets = {publish["dataset_uuid"] for publish in publishes} | set(request.datasets)
    return BufferAnswer(
        records=[BufferRecord(**publish, folder=str(_folder(scratch_bucket, publish))) for publish in publishes],
        tables=[BufferTable(**table) for table in await pool.fetch(sql["list_tables"], list(datasets))],
    )


def _folder(bucket: str, publish: asyncpg.Record) -> Folder:
    """Of the two folders that the attempt may publish from, the one that holds the batch; else the dataset's."""
    task, attempt = publish["task_id"], publish["attempt"]
    shared = shared_buffer_folder(bucket, task, attempt)
    with suppress(InvalidRequest):
        if shared.holds(ObjectName.parse(publish["batch_uri"])):
            return shared
    return buffer_folder(bucket, publish["dataset_uuid"], task, attempt)
