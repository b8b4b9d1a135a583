"""Reads a buffered dataset of an organisation as a DataFrame: all rows, or those of one publish."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg

from tracelake.data.postgres.source import read_postgres
from tracelake.data.statements import statements
from tracelake.domain.access.storage_locations import buffered_table
from tracelake.domain.buffered import SPARK_TYPES, from_json
from tracelake.wire.task.markers import ColumnEntry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def declared_columns(connection: psycopg.Connection[Any], org_id: UUID, generation: UUID) -> list[ColumnEntry] | None:
    """Return the columns of an organisation's table in Spark's types; None if there is no such table."""
    parameters = {"version": generation, "org": org_id}
    row = connection.execute(statements("buffered")["declared"], parameters).fetchone()
    if row is None:
        return None
    columns = from_json(json.loads(row[0])).columns
    return [ColumnEntry(name=column.name, type=SPARK_TYPES.get(column.type, column.type)) for column in columns]


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
    """Read the current rows: a row that was written again has its last values and publish."""
    from pyspark.sql import types as st

    names = ", ".join(f"`{column.name}` {column.type}" for column in columns)
    schema = st.StructType.fromDDL(f"{names}, org_id string, publish_seq bigint")
    assert isinstance(schema, st.StructType)  # noqa: S101 - several columns are one
    only: dict[str, str | int] = {"org_id": str(org_id)}
    if publish_seq is not None:
        only["publish_seq"] = publish_seq
    table = buffered_table(generation)
    rows = read_postgres(spark, dsn, table, schema, snapshot=snapshot, only=only, one_scan=one_scan)
    return rows.select(*[column.name for column in columns])
