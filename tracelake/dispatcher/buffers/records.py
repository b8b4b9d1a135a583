"""Returns the publish records of batches and the declarations of their tables to the sink.

The sink relies on these records alone, never on a queue's message or the contents of a batch.
"""

from __future__ import annotations

from contextlib import suppress

import asyncpg
import msgspec

from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.access.storage_locations import buffer_folder, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.store.queries import queries
from tracelake.wire.task.buffers import BufferAnswer, BufferRecord, BufferRequest, BufferTable


async def buffer_records(pool: asyncpg.Pool, scratch_bucket: str, request: BufferRequest) -> BufferAnswer:
    sql = queries("buffered")
    publishes = await pool.fetch(sql["list_publishes"], request.publish_ids) if request.publish_ids else []
    records = [_in_folder(scratch_bucket, BufferRecord(**publish, folder="")) for publish in publishes]
    datasets = {record.dataset_uuid for record in records} | set(request.datasets)
    tables = await pool.fetch(sql["list_tables"], list(datasets))
    return BufferAnswer(records=records, tables=[BufferTable(**table) for table in tables])


def _in_folder(bucket: str, record: BufferRecord) -> BufferRecord:
    """Of the two folders that the attempt may publish from, the one that holds the batch; else the dataset's."""
    folder = buffer_folder(bucket, record.dataset_uuid, record.task_id, record.attempt)
    shared = shared_buffer_folder(bucket, record.task_id, record.attempt)
    with suppress(InvalidRequest):
        folder = shared if shared.holds(ObjectName.parse(record.batch_uri)) else folder
    return msgspec.structs.replace(record, folder=str(folder))
