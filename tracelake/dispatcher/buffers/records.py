"""What the sink may believe about batches: read from the publish records, never from a queue's message or a batch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import asyncpg
import msgspec

from tracelake.dispatcher.control import Control
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.storage_locations import buffer_folder, shared_buffer_folder
from tracelake.errors import InvalidRequest
from tracelake.store.queries import queries
from tracelake.wire.task_messages import BufferAnswer, BufferRecord, BufferRequest, BufferTable


async def buffer_records(control: Control, asked: BufferRequest) -> BufferAnswer:
    sql = queries("buffered")
    rows = await control.pool.fetch(sql["records"], asked.publish_ids) if asked.publish_ids else []
    datasets = {row["dataset_uuid"] for row in rows} | set(asked.datasets)
    tables = await control.pool.fetch(sql["tables"], list(datasets))
    return BufferAnswer(records=[_record(control, row) for row in rows], tables=[_table(row) for row in tables])


def _record(control: Control, row: asyncpg.Record) -> BufferRecord:
    return BufferRecord(**dict(row), folder=str(_folder(control, row)))


def _folder(control: Control, row: asyncpg.Record) -> Folder:
    """Of the two folders that the attempt may publish from, the one that the batch lies in; if none, the dataset's."""
    bucket, task, attempt = control.places.scratch_bucket, row["task_id"], row["attempt"]
    shared = shared_buffer_folder(bucket, task, attempt)
    with suppress(InvalidRequest):
        if shared.holds(ObjectName.parse(row["batch_uri"])):
            return shared
    return buffer_folder(bucket, row["dataset_uuid"], task, attempt)


def _table(row: asyncpg.Record) -> BufferTable:
    values: Mapping[str, object] = {**dict(row), "declaration": msgspec.json.decode(row["declaration"])}
    return BufferTable(**values)  # type: ignore[arg-type]
