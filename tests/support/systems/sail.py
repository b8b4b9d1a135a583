"""A Sail engine over files of a test, and checked queries for it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.object_names import Folder, ObjectName
from tracelake.domain.sql.gate import CheckedSql, check_sql
from tracelake.query.checked_query import Caller, CheckedQuery, ColdFiles, Relation
from tracelake.query.sail.engine import SailEngine
from tracelake.runtime.metrics import Metrics
from tracelake.settings import QuerySettings
from tracelake.wire.markers import ColumnEntry

FOLDER = Folder.parse("s3://trace/tables/")


@dataclass
class SailSystem:
    engine: SailEngine
    objects: DiskObjects
    folder: Path
    metrics: Metrics
    relations: dict[str, Relation] = field(default_factory=dict)
    org_id: UUID = field(default_factory=uuid4)

    def add(self, name: str, table: pa.Table, columns: Mapping[str, str], *, files: int = 1) -> Relation:
        """Store a table as Parquet files, and know it by this name."""
        ends = [at * table.num_rows // files for at in range(files + 1)]
        names = [self._stored(table.slice(start, stop - start)) for start, stop in pairwise(ends)]
        entries = tuple(ColumnEntry(column, type_) for column, type_ in columns.items())
        cold = ColdFiles((uuid4(), 1), entries, tuple(names), table.nbytes, table.num_rows)
        self.relations[name] = Relation(name, uuid4(), cold.pin[0], 1, hot=False, cold=cold)
        return self.relations[name]

    def query(self, sql: str, *, org_id: UUID | None = None, **more: Any) -> CheckedQuery:
        return self.of(check_sql(sql, self.relations, deterministic=False), org_id=org_id, **more)

    def of(self, checked: CheckedSql, *, org_id: UUID | None = None, **more: Any) -> CheckedQuery:
        org, limits = org_id or self.org_id, {"max_rows": 1000, "seconds": 60.0, **more}
        relations = {name: self.relations[name] for name in checked.tables}
        caller = Caller(org, ("user", org), user_id=uuid4())
        return CheckedQuery(uuid4(), caller, checked, relations, **limits)

    def _stored(self, table: pa.Table) -> ObjectName:
        name, body = FOLDER.object(f"{uuid4().hex}.parquet"), io.BytesIO()
        pq.write_table(table, body)
        self.objects.put(name, body.getvalue())
        return name


@asynccontextmanager
async def sail_system(folder: Path, **settings: Any) -> AsyncIterator[SailSystem]:
    objects, metrics = DiskObjects(folder / "objects"), Metrics()
    engine = SailEngine(folder / "sail", objects, QuerySettings(**settings), metrics)
    try:
        yield SailSystem(engine, objects, folder, metrics)
    finally:
        await engine.close()
