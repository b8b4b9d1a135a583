"""Rows of a buffered dataset as a DataFrame: one organisation's, all of them or those that one publish has set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from tracelake.data.postgres.source import read_postgres
from tracelake.data.statements import statements
from tracelake.domain.buffered import SPARK_TYPES, from_json
from tracelake.domain.storage_locations import buffered_table
from tracelake.wire.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declared_columns(connection: psycopg.Connection[Any], org_id: UUID, generation: UUID) -> list[ColumnEntry] | None:
    """Of an organisation's table, as Spark reads them; None if it has none such."""
    asked = {"version": generation, "org": org_id}
    row = connection.execute(statements("buffered")["declared"], asked).fetchone()
    if row is None:
        return None
    columns = from_json(json.loads(row[0])).columns
    return [ColumnEntry(name=item.name, type=SPARK_TYPES.get(item.type, item.type)) for item in columns]


def read_buffered(
    spark: SparkSession,
    dsn: str,
    generation: UUID,
    columns: Sequence[ColumnEntry],
    *,
    org_id: UUID,
    publish_seq: int | None = None,
    snapshot: str | None = None,
    one_scan: bool = False,
) -> DataFrame:
    """As the table is now: a row that was written again since is as it was written last, under that publish."""
    from pyspark.sql import types as st

    told = ", ".join(f"`{column.name}` {column.type}" for column in columns)
    schema = st.StructType.fromDDL(f"{told}, org_id string, publish_seq bigint")
    assert isinstance(schema, st.StructType)  # noqa: S101 - several columns are one
    only: dict[str, str | int] = {"org_id": str(org_id)}
    if publish_seq is not None:
        only["publish_seq"] = publish_seq
    table = buffered_table(generation)
    rows = read_postgres(spark, dsn, table, schema, snapshot=snapshot, only=only, one_scan=one_scan)
    return rows.select(*[column.name for column in columns])
