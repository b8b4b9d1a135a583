"""Files as a worker leaves them: in the attempt's own folder, with their marker; and what it then reports of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion
from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.domain.access.object_names import Folder
from tracelake.ports import ObjectStore
from tracelake.wire.task.lifecycle import Claimed, OutputRef
from tracelake.wire.task.markers import ColumnEntry, FileEntry, Marker, attempt_folder, encode_marker, marker_in
from tracelake.wire.task.outputs import OutputBody

COLUMNS = [ColumnEntry(name="block_number", type="int64")]
Partition = tuple[int, int] | str
"""A range with both its ends, or a label."""


def text_of(stem: str, partition: Partition) -> bytes:  # noqa: ARG001 - as `parquet_of`
    """Not Parquet, and never the same twice: for tests in which nobody reads the rows."""
    return f"rows of {stem}, {uuid4()}".encode()


def parquet_of(stem: str, partition: Partition) -> bytes:  # noqa: ARG001 - as `text_of`
    """A row for each block of a range."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    start, end = partition if isinstance(partition, tuple) else (0, 0)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"block_number": list(range(start, end + 1))}), sink)
    return bytes(sink.getvalue())


def staged(
    objects: ObjectStore,
    task: Claimed,
    *partitions: Partition,
    columns: Sequence[ColumnEntry] = COLUMNS,
    content: Callable[[str, Partition], bytes] = text_of,
) -> list[OutputBody]:
    """One file for each partition of the task's first output, then the marker; returns what the worker reports."""
    folder, ref = folder_of(task), task.task.outputs[0]
    files = [
        _written(objects, folder, stem, content(stem, partition), _rows(partition))
        for partition in partitions
        for stem in (f"{task.task.job.name}_{_stem(partition)}",)
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


def _written(objects: ObjectStore, folder: Folder, stem: str, body: bytes, rows: int) -> FileEntry:
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


async def begun(control: Control, chain: Chain) -> tuple[Claimed, Claims]:
    return await claimed(control, await a_task(control, chain))


async def finish(control: Control, task: Claimed, claims: Claims, outputs: list[OutputBody]) -> None:
    await control.completer()(completion(task, outputs=outputs), claims)


A_MONTH_PASSES = """
ALTER TABLE commits DISABLE TRIGGER commits_never_change;
UPDATE commits SET created_at = created_at - interval '31 days';
ALTER TABLE commits ENABLE TRIGGER commits_never_change;
UPDATE task_attempts SET ended_at = ended_at - interval '31 days'
"""


async def written(control: Control, chain: Chain, *spans: tuple[int, int]) -> Claimed:
    task, claims = await begun(control, chain)
    await finish(control, task, claims, staged(control.objects, task, *spans))
    return task


def names(control: Control, folder: Folder) -> set[str]:
    return {stored.name.name for stored in control.objects.objects(folder)}


async def current_partitions(control: Control) -> list[tuple[str, int]]:
    """The key of each, and the commit that set it."""
    rows = await control.pool.fetch(
        "SELECT partition_key, valid_from FROM partition_versions WHERE valid_to IS NULL ORDER BY block_range"
    )
    return [(row["partition_key"], row["valid_from"]) for row in rows]


EIGHT_DAYS_PASS = "UPDATE dataset_versions SET left_at = left_at - interval '8 days'"


async def leave(control: Control, chain: Chain) -> UUID:
    """Deactivates the DAG; returns the version that was active."""
    done = await deactivate_dag(control.pool, control.after_commit, chain.org.id, "chain")
    assert done.former is not None
    return done.former
