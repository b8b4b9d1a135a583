"""An output into a buffered dataset: rows are written as batches and published; the sink merges them into the table.

Batches are not part of the completion: each counts once it is published, whatever happens to the attempt, and a row
that a retry sends again has the same key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range
from tracelake.errors import InvalidRequest
from tracelake.operators.api.outputs import Output
from tracelake.wire.task.outputs import EventBody, OutputBody

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tracelake.data.buffered.write_batches import WrittenBatch


class Publishing(Protocol):
    def buffer_folder(self, dataset: UUID) -> Folder: ...

    def publish(self, dataset: UUID, batch_uri: str, content_type: str, rows: int, size: int) -> None: ...


@dataclass(frozen=True)
class Buffer(Output):
    api: Publishing | None = None

    @property
    def folder(self) -> Folder:
        if self.api is None:
            raise InvalidRequest("this task cannot publish batches", where="/outputs")
        return self.api.buffer_folder(self.ref.dataset_uuid)

    def write(self, frame: DataFrame, partition: Range | str, *, files: int = 1) -> int:
        """Publish the rows of a DataFrame, in batches of a limited size; return how many."""
        from tracelake.data.buffered.write_batches import write_batches

        del files
        written = write_batches(frame, self.objects, self.folder, self.file_stem(partition))
        return sum(self._publish(batch) for batch in written)

    def write_table(self, table: pa.Table, partition: Range | str) -> int:
        from tracelake.data.buffered.write_batches import write_batch

        return self._publish(
            write_batch(table, self.objects, self.folder.object(f"{self.file_stem(partition)}.parquet"))
        )

    def finish(self) -> list[OutputBody]:
        return []

    def events(self) -> list[EventBody]:
        """The sink sends the events, when the rows are stored."""
        return []

    def _publish(self, written_batch: WrittenBatch) -> int:
        from tracelake.data.buffered.write_batches import CONTENT_TYPE

        assert self.api is not None  # noqa: S101 - checked by `_folder`
        self.api.publish(
            self.ref.dataset_uuid, str(written_batch.name), CONTENT_TYPE, written_batch.rows, written_batch.bytes
        )
        return written_batch.rows
