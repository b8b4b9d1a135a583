"""One output of a task: partitions are staged in the attempt's folder, and at the end the marker is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from tracelake.domain.object_names import SCHEME, Folder
from tracelake.domain.ranges import Range, format_file_part, format_partition_key
from tracelake.errors import InvalidRequest
from tracelake.ports import ObjectStore
from tracelake.wire.markers import (
    ColumnEntry,
    FileEntry,
    Marker,
    attempt_folder,
    encode_marker,
    hash_of_schema,
    in_words,
    marker_in,
)
from tracelake.wire.task_messages import EventBody, OutputBody, OutputRef

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tracelake.data.files.parquet_writer import Place, Written


@dataclass(frozen=True)
class Staged:
    partition: Range | str
    files: Sequence[FileEntry]
    columns: Sequence[ColumnEntry]
    over: int | None = None


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
        """What file names begin with."""
        return self.ref.name or f"{self.job}_{self.ref.output_index}"

    @property
    def folder(self) -> Folder:
        if not self.ref.storage_location.startswith(SCHEME):
            raise InvalidRequest(f"output {self.stem} is not made of files", where="/outputs")
        return attempt_folder(self.ref.storage_location, self.task_id, self.attempt)

    @property
    def place(self) -> Place:
        from tracelake.data.files.parquet_writer import Place

        return Place(self.objects, self.folder)

    def write(self, frame: DataFrame, partition: Range | str, *, files: int = 1) -> int:
        """Stage a DataFrame as one partition; how many rows it had."""
        from tracelake.data.files.parquet_writer import write_frame

        return self.stage(partition, write_frame(frame, self.place, self.file_stem(partition), files=files))

    def write_table(self, table: pa.Table, partition: Range | str) -> int:
        """Stage rows that are in this process already."""
        from tracelake.data.files.parquet_writer import write_table

        return self.stage(partition, [write_table(self.place, self.file_stem(partition), table)])

    def file_stem(self, partition: Range | str) -> str:
        return f"{self.stem}_{format_file_part(partition) if isinstance(partition, Range) else partition}"

    def stage(self, partition: Range | str, written: Iterable[Written], *, over: int | None = None) -> int:
        """What was written as one partition. With `over`, it counts only if what it replaces is of no later commit."""
        done = list(written)
        columns = self.staged[0].columns if self.staged else done[0].columns
        for outcome in done:
            self._refuse_other_columns(columns, outcome.columns)
        self.staged.append(Staged(partition, [outcome.file for outcome in done], columns, over))
        return sum(outcome.file.rows for outcome in done)

    def _refuse_other_columns(self, first: Sequence[ColumnEntry], given: Sequence[ColumnEntry]) -> None:
        """A reader is given one schema for all files, and Spark does not tell small letters from capital ones."""
        if hash_of_schema(first) != hash_of_schema(given):
            raise InvalidRequest(
                f"the files of {self.stem} have different schemas: ({in_words(first)}) and ({in_words(given)})",
                where="/outputs",
                hint="cast the columns, so that their types do not depend on the rows",
            )
        if len({column.name.casefold() for column in given}) < len(given):
            raise InvalidRequest(
                f"two columns of {self.stem} have one name: {', '.join(column.name for column in given)}",
                where="/outputs",
                hint="rename one",
            )

    def finish(self) -> list[OutputBody]:
        """The marker, last of all; and what the completion says of each partition."""
        if not self.staged:
            return []
        marker = Marker(
            task_id=self.task_id,
            attempt=self.attempt,
            dataset_uuid=self.ref.dataset_uuid,
            dataset_version=self.ref.dataset_version,
            files=[file for item in self.staged for file in item.files],
            columns=list(self.staged[0].columns),
        )
        self.objects.put(marker_in(self.folder), encode_marker(marker))
        return [self._body(item, marker.schema_hash) for item in self.staged]

    def events(self) -> list[EventBody]:
        return [
            EventBody(dataset_uuid=self.ref.dataset_uuid, dataset_version=self.ref.dataset_version, **_scope(item))
            for item in self.staged
        ]

    def _body(self, item: Staged, schema_hash: str) -> OutputBody:
        return OutputBody(
            dataset_uuid=self.ref.dataset_uuid,
            dataset_version=self.ref.dataset_version,
            output_index=self.ref.output_index,
            location=str(self.folder),
            row_count=sum(file.rows for file in item.files),
            bytes=sum(file.bytes for file in item.files),
            schema_hash=schema_hash,
            files=[msgspec.to_builtins(file) for file in item.files],
            over=item.over,
            **_scope(item),
        )


def _scope(item: Staged) -> dict[str, Any]:
    if isinstance(item.partition, Range):
        start, end = item.partition.edges
        return {"partition_key": format_partition_key(item.partition), "start": start, "end": end}
    return {"partition_key": item.partition}
