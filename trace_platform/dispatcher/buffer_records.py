"""What the sink may believe about batches: read from the publish records, never from a queue's message or a batch."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg
import msgspec

from trace_platform.contracts import BufferAnswer, BufferQuestion, BufferRecord, BufferTable
from trace_platform.dispatcher.control import Control
from trace_platform.domain.places import buffer_folder
from trace_platform.store.queries import queries


async def buffer_records(control: Control, asked: BufferQuestion) -> BufferAnswer:
    sql = queries("buffered")
    rows = await control.pool.fetch(sql["records"], asked.publish_ids) if asked.publish_ids else []
    datasets = {row["dataset_uuid"] for row in rows} | set(asked.datasets)
    tables = await control.pool.fetch(sql["tables"], list(datasets))
    return BufferAnswer(records=[_record(control, row) for row in rows], tables=[_table(row) for row in tables])


def _record(control: Control, row: asyncpg.Record) -> BufferRecord:
    folder = buffer_folder(control.places.scratch_bucket, row["dataset_uuid"], row["task_id"], row["attempt"])
    return BufferRecord(**dict(row), folder=str(folder))


def _table(row: asyncpg.Record) -> BufferTable:
    values: Mapping[str, object] = {**dict(row), "declaration": msgspec.json.decode(row["declaration"])}
    return BufferTable(**values)  # type: ignore[arg-type]
