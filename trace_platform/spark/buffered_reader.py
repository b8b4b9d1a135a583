"""Rows of a buffered dataset as a DataFrame: one organisation's, all of them or those that one publish has set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from trace_platform.domain.places import buffered_table
from trace_platform.markers import ColumnEntry
from trace_platform.spark.postgres_source import read_postgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_buffered(
    spark: SparkSession,
    dsn: str,
    generation: UUID,
    columns: Sequence[ColumnEntry],
    *,
    org_id: UUID,
    publish_seq: int | None = None,
) -> DataFrame:
    """As the table is now: a row that was written again since is as it was written last, under that publish."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as st

    told = ", ".join(f"`{column.name}` {column.type}" for column in columns)
    schema = st.StructType.fromDDL(f"{told}, org_id string, publish_seq bigint")
    assert isinstance(schema, st.StructType)  # noqa: S101 - several columns are one
    rows = read_postgres(spark, dsn, buffered_table(generation), schema)
    rows = rows.where(f.col("org_id") == str(org_id))
    if publish_seq is not None:
        rows = rows.where(f.col("publish_seq") == publish_seq)
    return rows.select(*[column.name for column in columns])
