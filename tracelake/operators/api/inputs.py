"""Reads an input of a task: its current files at the pinned commit, narrowed to a range and by the DAG's filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import msgspec

from tracelake.domain.access.object_names import SCHEME, Folder, ObjectName
from tracelake.domain.access.storage_locations import is_buffered
from tracelake.domain.filter.from_json import from_json
from tracelake.domain.ranges import Range, format_partition_key, inclusive, intersect
from tracelake.domain.sql.number_spans import ALL, Spans, passing, shared
from tracelake.errors import InvalidRequest, Unavailable
from tracelake.ports import ObjectStore
from tracelake.wire.task.lifecycle import InputRef
from tracelake.wire.task.markers import NUMBER, ColumnEntry
from tracelake.wire.task.outputs import FilesAnswer, PartitionFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tracelake.domain.sql.gate import CheckedSql

WHOLE: Final = "all"
"""The only partition of a dataset that is always written as a whole."""
InputPartition = Range | str
"""A partition: a range, or a label."""


class Files(Protocol):
    def files(self, dataset: UUID, span: Range | None) -> FilesAnswer: ...


@dataclass(frozen=True)
class InputTable:
    """How a buffered input is read: from data Postgres, only the organisation's rows."""

    dsn: str = field(repr=False, default="")
    org_id: UUID | None = None
    cursor: int | None = None
    """The publish that created the task, if any."""


@dataclass(frozen=True)
class Input:
    ref: InputRef
    session: SparkSession | None
    objects: ObjectStore
    api: Files
    span: Range | None
    label: str | None = None
    """The task's label, if it has one instead of a range."""
    table: InputTable = InputTable()

    @property
    def name(self) -> str:
        """Its name in the DAG."""
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
        """Return the rows of `span` or `label`; by default of the task's scope, if this input created the task.

        With `whole`, all rows.
        """
        return self.selected(span, label=label, whole=whole).dataframe()

    def rows_for(self, part: InputPartition, *, full: bool) -> DataFrame:
        return self.selected_for(part, full=full).dataframe()

    def selected_for(self, part: InputPartition, *, full: bool) -> Selected:
        """Return what a task reads of this input to make a part of its output.

        All followed inputs are narrowed to the part, whichever of them created the task. Inputs with `trigger: false`
        are read in full, and so is every input if the output is made in full each time (`full`).
        """
        if full or not self.ref.follows:
            return self.selected(whole=True)
        return self.selected(part) if isinstance(part, Range) else self.selected(label=part)

    def selected(self, span: Range | None = None, *, label: str | None = None, whole: bool = False) -> Selected:
        """The same as `dataframe`, before any file is opened."""
        if is_buffered(self.ref.storage_location):
            return Selected(self, None if whole else span, None, whole=whole)
        if not self.has_files:
            raise InvalidRequest(f"{self.name} is not made of files", where="/inputs")
        if not whole and span is None and label is None and self.ref.trigger:
            span, label = self.span, self.label
        part = None if whole else span or label
        listing = self.files(part)
        if listing.columns is None:
            raise Unavailable(f"nothing has been committed to {self.name} yet", where="/inputs")
        return Selected(self, part if isinstance(part, Range) else None, listing, whole=whole)

    def files(self, part: InputPartition | None) -> FilesAnswer:
        """List the files of one part, or of all. A missing part is empty; an impossible one is refused."""
        dataset = self.ref.dataset_uuid
        if part is None:
            return self.api.files(dataset, None)
        if isinstance(part, Range):
            listing = self.api.files(dataset, part)
            if not listing.partitions and listing.columns is not None:
                self._refuse_another_kind(self.api.files(dataset, None).partitions, part)
            return listing
        listing = self.api.files(dataset, None)
        self._refuse_another_kind(listing.partitions, part)
        return msgspec.structs.replace(
            listing, partitions=[partition for partition in listing.partitions if partition.partition_key == part]
        )

    def committed(self, part: InputPartition) -> tuple[InputPartition, ...]:
        """Return what exists of a part: all of it, ranges of it, or nothing. A table has no parts, and exists."""
        if not self.has_files:
            return (part,)
        partitions = [_part(partition) for partition in self.files(part).partitions]
        if isinstance(part, Range):
            return intersect([part], [functions for functions in partitions if isinstance(functions, Range)])
        return (part,) if partitions else ()

    def table_rows(self, *, whole: bool) -> DataFrame:
        """Read the current rows of a buffered dataset: those of the publish that created the task, or all."""
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
        """Keep the rows of the range that pass the DAG's filter; `read` are the partitions that they come from."""
        from tracelake.data.filter_column import as_column

        if span is not None and NUMBER in frame.columns:
            start, end = span.edges
            frame = frame.where(frame[NUMBER].between(start, end))
        elif span is not None:
            self._refuse_wider(span, read)
        if self.ref.where is not None:
            frame = frame.where(as_column(from_json(dict(self.ref.where)), frame))
        return frame

    def _refuse_another_kind(self, partitions: Sequence[PartitionFiles], part: InputPartition) -> None:
        """Refuse mixed kinds: ranges are made from ranges, labels from labels, a whole dataset from whole datasets.

        Made from another kind, a part would lack that input's rows, or have rows that other parts have as well.
        """
        kind = _kind(part)
        other = next((key for files in partitions if _kind(key := _part(files)) != kind), None)
        if other is None:
            return
        kinds = {Range: "of ranges, such as", str: "of partitions with names, such as"}
        made = "whole" if other == WHOLE else f"{kinds[type(other)]} {_describe(other)}"
        raise InvalidRequest(
            f"{self.name} is made {made}, and this task is for {'the whole' if part == WHOLE else _describe(part)}",
            where="/inputs",
            hint="`trigger: false` reads that input whole; `mode: full` makes all of the output anew each time",
        )

    def _refuse_wider(self, span: Range, read: Sequence[PartitionFiles]) -> None:
        """Without the column only partitions within the range can be read, with all their rows."""
        wider = [files.partition_key for files in read if not _within(_part(files), span)]
        if wider or not self.has_files:
            others = f"its partition {wider[0]}" if wider else "its table"
            raise InvalidRequest(
                f"{self.name} has no column {NUMBER}, so the rows of {_describe(span)} cannot be distinguished from"
                f" the others of {others}",
                where="/inputs",
                hint=f"keep {NUMBER} in it, make it in partitions that fit, or read it whole: `trigger: false`",
            )


@dataclass(frozen=True)
class Selected:
    """What a task reads of an input, with no file opened yet."""

    source: Input
    span: Range | None
    """The block numbers whose rows count; None: not narrowed by number."""
    listing: FilesAnswer | None
    """None: it is read from a table."""
    whole: bool

    @property
    def has_number(self) -> bool:
        """Whether its files can be pruned by their block numbers."""
        from tracelake.data.files.needed import columns_in, has_number

        return self.listing is not None and has_number(columns_in(self.listing))

    def dataframe(self, needed: Spans = ALL) -> DataFrame:
        """Return its rows; files without any block number of `needed` may be pruned."""
        source = self.source
        if self.listing is None:
            return source.kept_rows(source.table_rows(whole=self.whole), self.span, ())
        frame = read_listed(source.spark, source.objects, self._needed(self.listing, needed))
        return source.kept_rows(frame, self.span, self.listing.partitions)

    def _needed(self, listing: FilesAnswer, needed: Spans) -> FilesAnswer:
        """Prune files without rows of the range or of the DAG's filter, which are applied to the rows later."""
        from tracelake.data.files.needed import columns_in, narrowed_listing

        where, named = self.source.ref.where, NUMBER in {column.name for column in columns_in(listing)}
        spans = shared(
            [
                needed,
                (self.span.edges,) if self.span is not None and named else ALL,
                ALL if where is None else passing(from_json(dict(where)), NUMBER),
            ]
        )
        return narrowed_listing(listing, spans) if spans != ALL and self.has_number else listing


def needed_frames(query: CheckedSql, read: Mapping[str, Selected]) -> dict[str, DataFrame]:
    """Return the tables of a query, without files that its conditions cannot need."""
    from tracelake.domain.sql.numbers import needed_numbers

    having = [name for name, selected in read.items() if selected.has_number]
    needed = needed_numbers(query, NUMBER, having) if having else {}
    return {name: selected.dataframe(needed.get(name, ALL)) for name, selected in read.items()}


def _part(partition_files: PartitionFiles) -> InputPartition:
    return (
        partition_files.partition_key
        if partition_files.start is None or partition_files.end is None
        else inclusive(partition_files.start, partition_files.end)
    )


def _kind(part: InputPartition) -> tuple[type, bool]:
    return type(part), part == WHOLE


def _within(part: InputPartition, span: Range) -> bool:
    return isinstance(part, Range) and span.covers(part)


def _describe(part: InputPartition) -> str:
    return format_partition_key(part) if isinstance(part, Range) else part


def read_listed(spark: SparkSession, objects: ObjectStore, listing: FilesAnswer) -> DataFrame:
    """Read every file that the Dispatcher listed."""
    from tracelake.data.files.needed import columns_in
    from tracelake.data.files.parquet_reader import read_files

    return read_files(spark, objects, _names(listing), columns_in(listing))


def _names(listing: FilesAnswer) -> Sequence[ObjectName]:
    def name(location: str, file: Any) -> ObjectName:
        return Folder.parse(location).object(str(file["name"]))

    return [name(partition.location, file) for partition in listing.partitions for file in partition.files]
