"""Staging tables, in which batches wait for their merge; `sweep_staging` drops those of killed processes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from tracelake.data.buffered.stage_batches import TRY
from tracelake.data.postgres.sql_text import RequestedColumn
from tracelake.data.statements import statements

WORK_MEMORY: Final = "128MB"
"""For the sort of one merge: rows in key order are written up to twice as fast."""


def drop_staging(connection: psycopg.Connection[Any], name: str) -> None:
    if not connection.closed:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier("staging", name)))


def sweep_staging(connection: psycopg.Connection[Any], age: timedelta) -> int:
    """Drop staging tables older than any write may take; return how many."""
    names = [name for (name,) in connection.execute(statements("staging")["left"], {"age": age})]
    for name in names:
        drop_staging(connection, name)
    return len(names)


def make_staging(connection: psycopg.Connection[Any], columns: Mapping[str, RequestedColumn]) -> str:
    """Create an empty staging table with these columns and one for the attempt; return its name in schema staging."""
    row = connection.execute(statements("staging")["now"]).fetchone()
    name = f"s_{row[0] if row else 0:010d}_{secrets.token_hex(8)}"
    kinds = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(_kind(column))) for column in columns.values()
    ]
    body = sql.SQL(", ").join([*kinds, sql.SQL("{} bigint").format(sql.Identifier(TRY))])
    connection.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(sql.Identifier("staging", name), body))
    return name


def _kind(column: RequestedColumn) -> str:
    return "text" if pa.types.is_decimal(column.arrow) else column.postgres
