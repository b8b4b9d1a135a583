"""Lists the files of the current generation of a dataset, for a user who may see it."""

from __future__ import annotations

import asyncpg

from tracelake.dispatcher.datasets.partitions import generation_head, partitions_at
from tracelake.dispatcher.datasets.show import show_dataset
from tracelake.errors import NotFound
from tracelake.store.identity import User
from tracelake.wire.user.datasets import DatasetFiles, FilePartition


async def list_dataset_files(pool: asyncpg.Pool, user: User, name_or_uuid: str) -> DatasetFiles:
    dataset = await show_dataset(pool, user, name_or_uuid)
    current = next((generation for generation in dataset.generations if generation.current), None)
    if current is None:
        raise NotFound(f"no active DAG writes dataset {name_or_uuid}", where=name_or_uuid)
    head = await generation_head(pool, current.dataset_version)
    partitions = await partitions_at(pool, [current.dataset_version], head.last_commit)
    return DatasetFiles(
        dataset_version=current.dataset_version,
        commit=head.last_commit,
        columns=head.columns,
        partitions=[
            FilePartition(
                partition_key=partition.partition_key,
                commit=partition.commit,
                location=partition.location,
                files=list(partition.files),
                start=partition.start,
                end=partition.end,
                rows=partition.row_count,
            )
            for partition in partitions
        ],
    )
