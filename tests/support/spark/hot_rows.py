"""A hot table in a real database, and what it holds."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.support.spark.hot_tables import hot_table
from tracelake.data.hot.tables import HotTable, ensure

Connection = psycopg.Connection[Any]


def made(data: Connection) -> HotTable:
    table = hot_table()
    ensure(data, table)
    return table


def rows_in(data: Connection, table: HotTable) -> list[Any]:
    return data.execute(f"SELECT * FROM hot.{table.name} ORDER BY 1, 2".encode()).fetchall()  # noqa: S608


def marks(data: Connection) -> dict[int, int]:
    return dict(data.execute("SELECT number, max(seq) FROM trace_meta.hot_blocks GROUP BY 1 ORDER BY 1").fetchall())


def count(data: Connection, table: str) -> int:
    row = data.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()  # noqa: S608
    return int(row[0]) if row else -1
