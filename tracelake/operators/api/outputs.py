"""An output of a task: partitions are staged in the attempt's folder; at the end the marker is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from tracelake.data.files.addresses import joined
from tracelake.data.files.column_hashes import Hashes, combined
from tracelake.domain.access.object_names import SCHEME, Folder
from tracelake.domain.ranges import Range, format_file_part, format_partition_key
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.wire.task.lifecycle import OutputRef
from tracelake.wire.task.markers import (
    ColumnEntry,
    FileEntry,
    Marker,
    attempt_folder,
    encode_marker,
    hash_of_schema,
    in_words,
    marker_in,
)
from tracelake.wire.task.outputs import EventBody, OutputBody

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tracelake.data.files.parquet_writer import OutputFolder, Written

MAX_HASHES: Final = 2000
"""Of columns, in one completion: one that writes very many partitions reports none, and stays small."""


@dataclass(frozen=True)
class Staged:
    partition: Range | str
    files: Sequence[FileEntry]
    columns: Sequence[ColumnEntry]
    over: int | None = None
    hashes: Hashes = field(default_factory=dict)
    addresses: bytes | None = None


@dataclass(frozen=True)
class Output:
    ref: OutputRef
    task_id: UUID
    attempt: int
    objects: ObjectStore
    job: str
    staged: list[Staged] = field(default_factory=list)

    @property
    def stem(self) -> str:
        """The prefix of file names."""
        return self.ref.name or f"{self.job}_{self.ref.output_index}"

    @property
    def folder(self) -> Folder:
        if not self.ref.storage_location.startswith(SCHEME):
            raise InvalidRequest(f"output {self.stem} is not made of files", where="/outputs")
        return attempt_folder(self.ref.storage_location, self.task_id, self.attempt)

    @property
    def place(self) -> OutputFolder:
        from tracelake.data.files.parquet_writer import OutputFolder

        return OutputFolder(self.objects, self.folder)

    def write(self, frame: DataFrame, partition: Range | str, *, files: int = 1) -> int:
        """Stage a DataFrame as one partition; return its number of rows."""
        from tracelake.data.files.parquet_writer import write_frame

        return self.stage(partition, write_frame(frame, self.place, self.file_stem(partition), files=files))

    def write_table(self, table: pa.Table, partition: Range | str) -> int:
        """Stage rows that are in this process."""
        from tracelake.data.files.parquet_writer import write_table

        return self.stage(partition, [write_table(self.place, self.file_stem(partition), table)])

    def file_stem(self, partition: Range | str) -> str:
        return f"{self.stem}_{format_file_part(partition) if isinstance(partition, Range) else partition}"

    def stage(self, partition: Range | str, written: Iterable[Written], *, over: int | None = None) -> int:
        """Record files as one partition. With `over`, it counts only if what it replaces is of no later commit."""
        done = list(written)
        columns = self.staged[0].columns if self.staged else done[0].columns
        for outcome in done:
            self._refuse_other_columns(columns, outcome.columns)
        hashes = combined([outcome.hashes for outcome in done])
        addresses = joined([outcome.addresses for outcome in done])
        self.staged.append(Staged(partition, [outcome.file for outcome in done], columns, over, hashes, addresses))
        return sum(outcome.file.rows for outcome in done)

    def _refuse_other_columns(self, first: Sequence[ColumnEntry], columns: Sequence[ColumnEntry]) -> None:
        """Check the schemas: a reader uses one schema for all files, and Spark ignores the case of names."""
        if hash_of_schema(first) != hash_of_schema(columns):
            raise InvalidRequest(
                f"the files of {self.stem} have different schemas: ({in_words(first)}) and ({in_words(columns)})",
                where="/outputs",
                hint="cast the columns, so that their types do not depend on the rows",
            )
        if len({column.name.casefold() for column in columns}) < len(columns):
            raise InvalidRequest(
                f"two columns of {self.stem} have one name: {', '.join(column.name for column in columns)}",
                where="/outputs",
                hint="rename one",
            )

    def finish(self) -> list[OutputBody]:
        """Write the marker, after all files; return the partitions for the completion."""
        if not self.staged:
            return []
        marker = Marker(
            task_id=self.task_id,
            attempt=self.attempt,
            dataset_uuid=self.ref.dataset_uuid,
            dataset_version=self.ref.dataset_version,
            files=[file for staged in self.staged for file in staged.files],
            columns=list(self.staged[0].columns),
        )
        self.objects.put(marker_in(self.folder), encode_marker(marker))
        hashed = sum(len(staged.hashes) for staged in self.staged) <= MAX_HASHES
        return [self._body(staged, marker.schema_hash, hashed=hashed) for staged in self.staged]

    def events(self) -> list[EventBody]:
        return [
            EventBody(dataset_uuid=self.ref.dataset_uuid, dataset_version=self.ref.dataset_version, **_scope(staged))
            for staged in self.staged
        ]

    def _body(self, staged: Staged, schema_hash: str, *, hashed: bool) -> OutputBody:
        return OutputBody(
            dataset_uuid=self.ref.dataset_uuid,
            dataset_version=self.ref.dataset_version,
            output_index=self.ref.output_index,
            location=str(self.folder),
            row_count=sum(file.rows for file in staged.files),
            bytes=sum(file.bytes for file in staged.files),
            schema_hash=schema_hash,
            files=[msgspec.to_builtins(file) for file in staged.files],
            over=staged.over,
            column_hashes=dict(staged.hashes) if hashed and staged.hashes else None,
            addresses=staged.addresses if hashed else None,
            **_scope(staged),
        )


def _scope(staged: Staged) -> dict[str, Any]:
    if isinstance(staged.partition, Range):
        start, end = staged.partition.edges
        return {"partition_key": format_partition_key(staged.partition), "start": start, "end": end}
    return {"partition_key": staged.partition}
