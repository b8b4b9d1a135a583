"""One input of a task as rows: the files in force at its pinned commit, narrowed to a range and by the DAG's filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from trace_platform.contracts import FilesAnswer, InputRef
from trace_platform.domain.filters import from_json
from trace_platform.domain.objects import SCHEME, Folder, ObjectName
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
class Input:
    ref: InputRef
    spark: SparkSession
    objects: ObjectStore
    door: Files
    span: Range | None

    @property
    def name(self) -> str:
        """As the DAG calls it."""
        return self.ref.alias or self.ref.name or str(self.ref.dataset_uuid)

    @property
    def has_files(self) -> bool:
        return (self.ref.storage_location or "").startswith(SCHEME)

    def dataframe(self, span: Range | None = None, *, whole: bool = False) -> DataFrame:
        """The rows of `span`, else of the task's range if this input made the task; with `whole`, all rows."""
        if not self.has_files:
            raise InvalidRequest(f"{self.name} is not made of files", where="/inputs")
        asked = None if whole else span or (self.span if self.ref.trigger else None)
        found = self.door.files(self.ref.dataset_uuid, asked)
        if found.columns is None:
            raise Unavailable(f"nothing has been committed to {self.name} yet", where="/inputs")
        return self.narrowed(read_listed(self.spark, self.objects, found), asked)

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
