"""One input of a task as rows: the files in force at its pinned commit, narrowed to a range and by the DAG's filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from trace_platform.contracts import FilesAnswer, InputRef
from trace_platform.domain.filters import from_json
from trace_platform.domain.objects import SCHEME, Folder, ObjectName
from trace_platform.domain.places import is_buffered
from trace_platform.domain.ranges import Range
from trace_platform.errors import InvalidRequest, Unavailable
from trace_platform.markers import ColumnEntry
from trace_platform.ports import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBER: Final = "block_number"
"""The column by which rows of a range partition are told apart, where there is one."""


class Files(Protocol):
    def files(self, dataset: UUID, span: Range | None) -> FilesAnswer: ...


@dataclass(frozen=True)
class Table:
    """How a buffered input is read: through data Postgres, the organisation's rows alone."""

    dsn: str = field(repr=False, default="")
    org_id: UUID | None = None
    cursor: int | None = None
    """The publish that made the task, if one did."""


@dataclass(frozen=True)
class Input:
    ref: InputRef
    session: SparkSession | None
    objects: ObjectStore
    door: Files
    span: Range | None
    label: str | None = None
    """The task's part, if it has a name instead of a range."""
    table: Table = Table()

    @property
    def name(self) -> str:
        """As the DAG calls it."""
        return self.ref.alias or self.ref.name or str(self.ref.dataset_uuid)

    @property
    def spark(self) -> SparkSession:
        if self.session is None:
            raise InvalidRequest(f"{self.name} is read on Spark, and this worker has none", where="/inputs")
        return self.session

    @property
    def has_files(self) -> bool:
        return (self.ref.storage_location or "").startswith(SCHEME)

    def dataframe(self, span: Range | None = None, *, label: str | None = None, whole: bool = False) -> DataFrame:
        """The rows of `span` or of the partition `label`, else of the task's part if this input made the task.

        With `whole`, all rows.
        """
        if is_buffered(self.ref.storage_location):
            return self.narrowed(self._rows(whole=whole), None if whole else span)
        if not self.has_files:
            raise InvalidRequest(f"{self.name} is not made of files", where="/inputs")
        if not whole and span is None and label is None and self.ref.trigger:
            span, label = self.span, self.label
        found = self.door.files(self.ref.dataset_uuid, None if whole else span)
        if found.columns is None:
            raise Unavailable(f"nothing has been committed to {self.name} yet", where="/inputs")
        if label is not None and not whole:
            kept = [one for one in found.partitions if one.partition_key == label]
            found = msgspec.structs.replace(found, partitions=kept)
        return self.narrowed(read_listed(self.spark, self.objects, found), None if whole else span)

    def _rows(self, *, whole: bool) -> DataFrame:
        """Of a buffered dataset, as its table is now: what the publish that made the task has set, or all of it."""
        from trace_platform.spark.buffered_reader import read_buffered

        columns = self.door.files(self.ref.dataset_uuid, None).columns
        if columns is None or self.table.org_id is None:
            raise Unavailable(f"{self.name} has no table yet", where="/inputs")
        cursor = self.table.cursor if self.ref.trigger and not whole else None
        known = msgspec.convert(list(columns), list[ColumnEntry])
        return read_buffered(
            self.spark, self.table.dsn, self.ref.dataset_version, known, org_id=self.table.org_id, publish_seq=cursor
        )

    def narrowed(self, frame: DataFrame, span: Range | None) -> DataFrame:
        from trace_platform.spark.filter_column import as_column

        if span is not None and NUMBER in frame.columns:
            start, end = span.edges
            frame = frame.where(frame[NUMBER].between(start, end))
        if self.ref.where is not None:
            frame = frame.where(as_column(from_json(dict(self.ref.where)), frame))
        return frame


def read_listed(spark: SparkSession, objects: ObjectStore, found: FilesAnswer) -> DataFrame:
    """The rows of every file that the Dispatcher listed."""
    from trace_platform.spark.parquet_reader import read_files

    columns = msgspec.convert(list(found.columns or ()), list[ColumnEntry])
    return read_files(spark, objects, _names(found), columns)


def _names(found: FilesAnswer) -> Sequence[ObjectName]:
    def name(location: str, file: Any) -> ObjectName:
        return Folder.parse(location).object(str(file["name"]))

    return [name(one.location, file) for one in found.partitions for file in one.files]
