"""The files that hold the current generation of a dataset, for a user who may see it."""

from __future__ import annotations

import asyncpg
import msgspec

from tracelake.dispatcher.datasets.show import show_dataset
from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.store.queries import queries
from tracelake.wire.user_messages import DatasetFiles, FilePartition


async def list_dataset_files(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> DatasetFiles:
    found = await show_dataset(pool, user, name_or_uuid)
    current = next((generation for generation in found.generations if generation.current), None)
    if current is None:
        raise NotFound(f"dataset {name_or_uuid} is served by no active DAG", where=name_or_uuid)
    sql = queries("files")
    head = await pool.fetchrow(sql["generation_head"], current.dataset_version)
    commit = (head["last_commit"] or 0) if head else 0
    rows = await pool.fetch(sql["partitions_at"], [current.dataset_version], commit, None, None)
    return DatasetFiles(
        dataset_version=current.dataset_version,
        commit=commit,
        columns=msgspec.json.decode(head["columns"]) if head and head["columns"] else None,
        partitions=[_partition(row) for row in rows],
    )


def _partition(row: asyncpg.Record) -> FilePartition:
    return FilePartition(
        partition_key=row["partition_key"],
        commit=row["valid_from"],
        location=row["location"],
        files=msgspec.json.decode(row["files"]),
        start=row["start"],
        end=row["end"],
        rows=row["row_count"],
    )
