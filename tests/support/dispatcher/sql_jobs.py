"""Runs `sql` jobs without Spark: Parquet as workers write it, and queries of whole numbers by SQLite."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.dispatcher.control import Org
from tests.support.dispatcher.run_tasks import partition_key, partition_of
from tracelake.dispatcher.control import Control
from tracelake.domain.access.object_names import Folder
from tracelake.wire.task.lifecycle import Claimed, InputRef

FILES = """
SELECT p.location, f ->> 'name' AS name
  FROM partition_versions p, jsonb_array_elements(p.files) AS f
 WHERE p.dataset_version = $1 AND p.commits @> $2::bigint AND ($3::text IS NULL OR p.partition_key = $3)
 ORDER BY p.block_range
"""
SERVED = """
SELECT s.dataset_version, h.last_commit
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN dataset_heads h ON h.dataset_uuid = d.id
 WHERE d.org_id = $1 AND d.producer_job_name = $2
"""


@dataclass
class Loads:
    """What the source of the tests has in each range, and how each task writes its partition."""

    rows: dict[str, pa.Table] = field(default_factory=dict)

    async def content(self, control: Control, task: Claimed) -> pa.Table:
        """A source writes its rows, a `sql` job the result of its query."""
        key, config = partition_key(partition_of(task)), task.task.config
        if "query" not in config:
            return self.rows[key]
        whole = config.get("mode") == "full"
        tables = {item.alias: await _read(control, item, None if whole else key) for item in task.task.inputs}
        return queried(config["query"], tables)


def queried(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    with closing(sqlite3.connect(":memory:")) as engine:
        for name, rows in tables.items():
            columns = ", ".join(f'"{column}" INTEGER' for column in rows.column_names)
            engine.execute(f'CREATE TABLE "{name}" ({columns})')
            places = ", ".join("?" for _ in rows.column_names)
            values = zip(*rows.to_pydict().values(), strict=True)
            engine.executemany(f'INSERT INTO "{name}" VALUES ({places})', values)  # noqa: S608 - of the test's own
        found = engine.execute(query)
        names, result = [column[0] for column in found.description], found.fetchall()
    return pa.table({name: pa.array([row[n] for row in result], pa.int64()) for n, name in enumerate(names)})


async def served_rows(control: Control, org: Org, job: str) -> list[tuple[Any, ...]]:
    """The rows that the active version serves of what a job writes."""
    row = await control.pool.fetchrow(SERVED, org.id, job)
    return [] if row is None else as_set([await _rows(control, row["dataset_version"], row["last_commit"], None)])


def as_set(tables: Iterable[pa.Table]) -> list[tuple[Any, ...]]:
    """Their rows, in an order that does not depend on how they were written."""
    return sorted(tuple(sorted(row.items())) for table in tables for row in table.to_pylist())


async def _read(control: Control, item: InputRef, key: str | None) -> pa.Table:
    return await _rows(control, item.dataset_version, item.commit, key)


async def _rows(control: Control, version: UUID, commit: int | None, key: str | None) -> pa.Table:
    found = [
        pq.read_table(io.BytesIO(control.objects.get(Folder.parse(row["location"]).object(row["name"]))))
        for row in await control.pool.fetch(FILES, version, commit, key)
    ]
    return pa.concat_tables(found)
