"""A Sail engine over files of a test, and checked queries for it."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.sql.gate import CheckedSql, check_sql
from tracelake.ports import ObjectStore
from tracelake.query.checked_query import Caller, CheckedQuery, ColdFiles, Relation
from tracelake.query.sail.engine import SailEngine
from tracelake.query.sail.server import SailServer
from tracelake.query.sail.translate.translate import ForSail
from tracelake.runtime.metrics import Metrics
from tracelake.settings import QuerySettings
from tracelake.wire.task.markers import ColumnEntry

FOLDER = Folder.parse("s3://trace/tables/")
NOBODY: Final = 65534
"""A user without rights."""
PLACES: Final = tuple(map(Path, (tempfile.gettempdir(), "/tmp", "/dev/shm")))  # noqa: S108 - open to all users


@dataclass
class SailSystem:
    engine: SailEngine
    objects: ObjectStore
    folder: Path
    metrics: Metrics
    relations: dict[str, Relation] = field(default_factory=dict)
    org_id: UUID = field(default_factory=uuid4)

    def add(
        self, name: str, table: pa.Table, columns: Mapping[str, str], *, files: int = 1, row_group: int | None = None
    ) -> Relation:
        """Store a table as Parquet files, and know it by this name. `row_group`: how many rows one has."""
        ends = [at * table.num_rows // files for at in range(files + 1)]
        names = [self._stored(table.slice(start, stop - start), row_group) for start, stop in pairwise(ends)]
        entries = tuple(ColumnEntry(column, type_) for column, type_ in columns.items())
        cold = ColdFiles((uuid4(), 1), entries, tuple(names), table.nbytes, table.num_rows)
        self.relations[name] = Relation(name, uuid4(), cold.pin[0], 1, hot=False, cold=cold)
        return self.relations[name]

    def query(self, sql: str, *, org_id: UUID | None = None, **more: Any) -> CheckedQuery:
        return self.of(check_sql(sql, self.relations, deterministic=False), org_id=org_id, **more)

    def of(self, checked: CheckedSql, *, org_id: UUID | None = None, **more: Any) -> CheckedQuery:
        org, limits = org_id or self.org_id, {"max_rows": 1000, "seconds": 60.0, **more}
        relations = {name: self.relations[name] for name in checked.tables}
        user = None if limits.pop("task", False) else uuid4()
        caller = Caller(org, ("user", org), user_id=user, task_id=None if user else uuid4())
        return CheckedQuery(uuid4(), caller, checked, relations, **limits)

    def server(self, org_id: UUID | None = None) -> SailServer:
        """The running engine of an organisation."""
        return self.engine._pool._servers[org_id or self.org_id].result()

    def pids(self, org_id: UUID | None = None) -> list[int]:
        """The processes of all engines, or of one."""
        tasks = [task for org, task in self.engine._pool._servers.items() if org_id in {None, org} and task.done()]
        return [pid for task in tasks if (sandbox := task.result()._sandbox) for pid in sandbox.pids()]

    def cgroups(self) -> list[Path]:
        """The groups of all engines."""
        servers = [task.result() for task in self.engine._pool._servers.values() if task.done()]
        return [folder for server in servers if server._cgroup for folder in server._cgroup.folders]

    def _stored(self, table: pa.Table, row_group: int | None) -> ObjectName:
        # Spark writes no statistics of NaN, which Arrow leaves out of the largest value.
        name, body = FOLDER.object(f"{uuid4().hex}.parquet"), io.BytesIO()
        exact = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
        pq.write_table(table, body, row_group_size=row_group, write_statistics=exact)
        self.objects.put(name, body.getvalue())
        return name


@dataclass(frozen=True)
class Unchecked(CheckedSql):
    """A statement that no gate has seen."""

    text: str = ""

    def render(self, relations: Any) -> str:
        return self.text.replace("{granted}", next(iter(relations.values())))


def as_it_is(checked: CheckedSql, _: Mapping[str, Relation]) -> ForSail:
    """A statement that nothing changed: what Sail does with it is the test's question."""
    return ForSail(checked, None)


@asynccontextmanager
async def sail_system(
    folder: Path,
    data_dsn: str = "",
    objects: ObjectStore | None = None,
    translate: Callable[[CheckedSql, Mapping[str, Relation]], ForSail] = as_it_is,
    **settings: Any,
) -> AsyncIterator[SailSystem]:
    objects, metrics = objects or DiskObjects(folder / "objects"), Metrics()
    engine = SailEngine(folder / "sail", objects, data_dsn, QuerySettings(**settings), metrics, translate=translate)
    try:
        yield SailSystem(engine, objects, folder, metrics)
    finally:
        await engine.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 2 MB at this folder. Only root can mount it."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def open_to_all(text: str) -> Iterator[Path]:
    """A file that every user may read, in a folder that every user may write: nothing but a sandbox hides it."""
    with tempfile.TemporaryDirectory(dir=next(filter(_is_open, PLACES))) as name:
        file = Path(name) / "secret.txt"
        file.parent.chmod(0o777)
        file.write_text(text)
        file.chmod(0o644)
        if os.geteuid() == 0:
            found = subprocess.run(["cat", file], check=True, capture_output=True, user=NOBODY, group=NOBODY)
            assert found.stdout.decode() == text, "a user without rights reads it outside of a sandbox"
        yield file


def _is_open(folder: Path) -> bool:
    return folder.is_dir() and all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))
