"""Reads given files of the object store as a DataFrame, with a known schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracelake.domain.access.object_names import ObjectName
from tracelake.ports import ObjectStore
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def read_files(
    spark: SparkSession, objects: ObjectStore, files: Sequence[ObjectName], columns: Sequence[ColumnEntry]
) -> DataFrame:
    """Return all rows of all files. Where Spark cannot open the store itself, its Python workers read the files."""
    schema = ddl(columns)
    if not files:
        return spark.createDataFrame([], schema)
    paths = [objects.for_spark(name) for name in files]
    if all(path is not None for path in paths):
        return spark.read.schema(schema).parquet(*[path for path in paths if path is not None])
    return _read_in_workers(spark, objects, files, columns)


def ddl(columns: Sequence[ColumnEntry]) -> str:
    return ", ".join(f"`{column.name.replace('`', '``')}` {column.type}" for column in columns)


def _read_in_workers(
    spark: SparkSession, objects: ObjectStore, files: Sequence[ObjectName], columns: Sequence[ColumnEntry]
) -> DataFrame:
    """Reorder columns: Spark takes them by position, and files of one schema may order them differently."""
    names, wanted = list(files), [column.name for column in columns]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for batch in batches:
            for number in batch.column(0).to_pylist():
                file = pq.ParquetFile(pa.BufferReader(objects.get(names[number])))
                yield from (rows.select(wanted) for rows in file.iter_batches())

    return spark.range(len(names), numPartitions=len(names)).mapInArrow(read, ddl(columns))
