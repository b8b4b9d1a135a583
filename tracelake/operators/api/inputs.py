"""One input of a task as rows: the files in force at its pinned commit, narrowed to a range and by the DAG's filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from tracelake.domain.filter.parse import from_json
from tracelake.domain.object_names import SCHEME, Folder, ObjectName
from tracelake.domain.ranges import Range, format_partition_key, inclusive, intersect
from tracelake.domain.sql.number_spans import ALL, Spans, passing, shared
from tracelake.domain.storage_locations import is_buffered
from tracelake.errors import InvalidRequest, Unavailable
from tracelake.ports import ObjectStore
from tracelake.wire.markers import NUMBER, ColumnEntry
from tracelake.wire.task_messages import FilesAnswer, InputRef, PartitionFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tracelake.domain.sql.gate import CheckedSql

WHOLE: Final = "all"
"""The one partition of a dataset that is always written whole."""
Partition = Range | str
"""A partition: a range, or a name."""


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
    api: Files
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
        return self.selected(span, label=label, whole=whole).dataframe()

    def rows_for(self, part: Partition, *, full: bool) -> DataFrame:
        return self.selected_for(part, full=full).dataframe()

    def selected_for(self, part: Partition, *, full: bool) -> Selected:
        """What a task reads of this input to make a part of its output.

        Inputs that are followed are narrowed to the part, all of them: whichever of them made the task. What is only
        read (`trigger: false`) is read whole, and so is everything if the output is made anew each time (`full`).
        """
        if full or not self.ref.follows:
            return self.selected(whole=True)
        return self.selected(part) if isinstance(part, Range) else self.selected(label=part)

    def selected(self, span: Range | None = None, *, label: str | None = None, whole: bool = False) -> Selected:
        """The same as `dataframe`, before any of its files is opened."""
        if is_buffered(self.ref.storage_location):
            return Selected(self, None if whole else span, None, whole=whole)
        if not self.has_files:
            raise InvalidRequest(f"{self.name} is not made of files", where="/inputs")
        if not whole and span is None and label is None and self.ref.trigger:
            span, label = self.span, self.label
        part = None if whole else span or label
        found = self.files(part)
        if found.columns is None:
            raise Unavailable(f"nothing has been committed to {self.name} yet", where="/inputs")
        return Selected(self, part if isinstance(part, Range) else None, found, whole=whole)

    def files(self, part: Partition | None) -> FilesAnswer:
        """Of one part, or of all. That a part is not there yet is nothing wrong; that it can never be is refused."""
        dataset = self.ref.dataset_uuid
        if part is None:
            return self.api.files(dataset, None)
        if isinstance(part, Range):
            found = self.api.files(dataset, part)
            if not found.partitions and found.columns is not None:
                self._refuse_another_kind(self.api.files(dataset, None).partitions, part)
            return found
        found = self.api.files(dataset, None)
        self._refuse_another_kind(found.partitions, part)
        return msgspec.structs.replace(
            found, partitions=[partition for partition in found.partitions if partition.partition_key == part]
        )

    def committed(self, part: Partition) -> tuple[Partition, ...]:
        """What of a part is there: all of it, ranges of it, or nothing. A table has no parts, and is there."""
        if not self.has_files:
            return (part,)
        there = [_part(partition) for partition in self.files(part).partitions]
        if isinstance(part, Range):
            return intersect([part], [functions for functions in there if isinstance(functions, Range)])
        return (part,) if there else ()

    def table_rows(self, *, whole: bool) -> DataFrame:
        """Of a buffered dataset, as its table is now: what the publish that made the task has set, or all of it."""
        from tracelake.data.buffered.reader import read_buffered

        columns = self.api.files(self.ref.dataset_uuid, None).columns
        if columns is None or self.table.org_id is None:
            raise Unavailable(f"{self.name} has no table yet", where="/inputs")
        cursor = self.table.cursor if self.ref.trigger and not whole else None
        known = msgspec.convert(list(columns), list[ColumnEntry])
        return read_buffered(
            self.spark, self.table.dsn, self.ref.dataset_version, known, org_id=self.table.org_id, publish_seq=cursor
        )

    def kept_rows(self, frame: DataFrame, span: Range | None, read: Sequence[PartitionFiles]) -> DataFrame:
        """Those of the range that pass the DAG's filter; `read` are the partitions that they come from."""
        from tracelake.data.filter_column import as_column

        if span is not None and NUMBER in frame.columns:
            start, end = span.edges
            frame = frame.where(frame[NUMBER].between(start, end))
        elif span is not None:
            self._refuse_wider(span, read)
        if self.ref.where is not None:
            frame = frame.where(as_column(from_json(dict(self.ref.where)), frame))
        return frame

    def _refuse_another_kind(self, there: Sequence[PartitionFiles], part: Partition) -> None:
        """Ranges are made from ranges, names from names and a whole from a whole.

        Made from another kind, a part would lack that input's rows, or hold rows that other parts hold as well.
        """
        kind = _kind(part)
        other = next((key for files in there if _kind(key := _part(files)) != kind), None)
        if other is None:
            return
        made = {Range: "of ranges, such as", str: "of partitions with names, such as"}
        said = "whole" if other == WHOLE else f"{made[type(other)]} {_say(other)}"
        raise InvalidRequest(
            f"{self.name} is made {said}, and this task is for {'the whole' if part == WHOLE else _say(part)}",
            where="/inputs",
            hint="`trigger: false` reads that input whole; `mode: full` makes all of the output anew each time",
        )

    def _refuse_wider(self, span: Range, read: Sequence[PartitionFiles]) -> None:
        """Without the column, only partitions that lie within the range can be read: all of their rows are meant."""
        wider = [files.partition_key for files in read if not _within(_part(files), span)]
        if wider or not self.has_files:
            others = f"its partition {wider[0]}" if wider else "its table"
            raise InvalidRequest(
                f"{self.name} has no column {NUMBER}, so the rows of {_say(span)} cannot be told from the others of"
                f" {others}",
                where="/inputs",
                hint=f"keep {NUMBER} in it, make it in partitions that fit, or read it whole: `trigger: false`",
            )


@dataclass(frozen=True)
class Selected:
    """What a task reads of an input: found, and not opened yet."""

    source: Input
    span: Range | None
    """The rows of which block numbers are meant; None: not told apart by these."""
    found: FilesAnswer | None
    """None: it is read from a table."""
    whole: bool

    @property
    def has_number(self) -> bool:
        """Whether its files are told apart by the block numbers in them."""
        from tracelake.data.files.needed import columns_in, has_number

        return self.found is not None and has_number(columns_in(self.found))

    def dataframe(self, needed: Spans = ALL) -> DataFrame:
        """Its rows; files without any block number of `needed` may be left out."""
        source = self.source
        if self.found is None:
            return source.kept_rows(source.table_rows(whole=self.whole), self.span, ())
        frame = read_listed(source.spark, source.objects, self._needed(self.found, needed))
        return source.kept_rows(frame, self.span, self.found.partitions)

    def _needed(self, found: FilesAnswer, needed: Spans) -> FilesAnswer:
        """Rows are narrowed by the range and by the DAG's filter later on: files without such rows are not opened."""
        from tracelake.data.files.needed import columns_in, narrowed_listing

        where, named = self.source.ref.where, NUMBER in {column.name for column in columns_in(found)}
        spans = shared(
            [
                needed,
                (self.span.edges,) if self.span is not None and named else ALL,
                ALL if where is None else passing(from_json(dict(where)), NUMBER),
            ]
        )
        return narrowed_listing(found, spans) if spans != ALL and self.has_number else found


def needed_frames(query: CheckedSql, read: Mapping[str, Selected]) -> dict[str, DataFrame]:
    """The tables of a query, without files that none of its conditions can need."""
    from tracelake.domain.sql.numbers import needed_numbers

    having = [name for name, selected in read.items() if selected.has_number]
    needed = needed_numbers(query, NUMBER, having) if having else {}
    return {name: selected.dataframe(needed.get(name, ALL)) for name, selected in read.items()}


def _part(partition_files: PartitionFiles) -> Partition:
    return (
        partition_files.partition_key
        if partition_files.start is None or partition_files.end is None
        else inclusive(partition_files.start, partition_files.end)
    )


def _kind(part: Partition) -> tuple[type, bool]:
    return type(part), part == WHOLE


def _within(part: Partition, span: Range) -> bool:
    return isinstance(part, Range) and span.covers(part)


def _say(part: Partition) -> str:
    return format_partition_key(part) if isinstance(part, Range) else part


def read_listed(spark: SparkSession, objects: ObjectStore, found: FilesAnswer) -> DataFrame:
    """The rows of every file that the Dispatcher listed."""
    from tracelake.data.files.needed import columns_in
    from tracelake.data.files.parquet_reader import read_files

    return read_files(spark, objects, _names(found), columns_in(found))


def _names(found: FilesAnswer) -> Sequence[ObjectName]:
    def name(location: str, file: Any) -> ObjectName:
        return Folder.parse(location).object(str(file["name"]))

    return [name(partition.location, file) for partition in found.partitions for file in partition.files]
