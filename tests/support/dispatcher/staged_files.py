"""Files as a worker leaves them: in the attempt's own folder, with their marker; and what it then reports of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tracelake.domain.object_names import Folder
from tracelake.ports import ObjectStore
from tracelake.wire.markers import ColumnEntry, FileEntry, Marker, attempt_folder, encode_marker, marker_in
from tracelake.wire.output_messages import OutputBody
from tracelake.wire.task_messages import Claimed, OutputRef

COLUMNS = [ColumnEntry(name="block_number", type="int64")]
Partition = tuple[int, int] | str
"""A range with both its ends, or a label."""


def staged(
    objects: ObjectStore, task: Claimed, *partitions: Partition, columns: Sequence[ColumnEntry] = COLUMNS
) -> list[OutputBody]:
    """One file for each partition of the task's first output, then the marker; returns what the worker reports."""
    folder, ref = folder_of(task), task.task.outputs[0]
    files = [
        _written(objects, folder, f"{task.task.job.name}_{_stem(partition)}", _rows(partition))
        for partition in partitions
    ]
    marker = Marker(
        task_id=task.task.task_id,
        attempt=task.attempt,
        dataset_uuid=ref.dataset_uuid,
        dataset_version=ref.dataset_version,
        files=files,
        columns=list(columns),
    )
    objects.put(marker_in(folder), encode_marker(marker))
    return [_output_body(ref, folder, file, item) for file, item in zip(files, partitions, strict=True)]


def folder_of(task: Claimed) -> Folder:
    return attempt_folder(task.task.outputs[0].storage_location, task.task.task_id, task.attempt)


def _written(objects: ObjectStore, folder: Folder, stem: str, rows: int) -> FileEntry:
    body = f"rows of {stem}".encode()
    entry = FileEntry(name=f"{stem}.parquet", rows=rows, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
    objects.put(folder.object(entry.name), body)
    return entry


def _output_body(ref: OutputRef, folder: Folder, file: FileEntry, partition: Partition) -> OutputBody:
    scope: dict[str, Any] = (
        {"partition_key": partition} if isinstance(partition, str) else {"start": partition[0], "end": partition[1]}
    )
    return OutputBody(
        dataset_uuid=ref.dataset_uuid,
        dataset_version=ref.dataset_version,
        location=str(folder),
        row_count=file.rows,
        bytes=file.bytes,
        files=[msgspec.to_builtins(file)],
        **scope,
    )


def _stem(partition: Partition) -> str:
    return partition if isinstance(partition, str) else f"{partition[0]}_{partition[1]}"


def _rows(partition: Partition) -> int:
    return 1 if isinstance(partition, str) else partition[1] - partition[0] + 1
