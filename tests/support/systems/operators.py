"""Operators in a test system: a Dispatcher with its listeners, worker loops, a Spark session, datasets read back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.systems.walk import OnDispatcher, walking, working
from tracelake.domain.access.object_names import Folder
from tracelake.domain.dag.catalog import OperatorSpec, checked_by, every_input
from tracelake.domain.dag.model import Storage
from tracelake.domain.ranges import Range
from tracelake.operators.api.context import Resources, TaskContext
from tracelake.operators.api.outcome import OperatorConfig, Outcome
from tracelake.operators.registry import WORKER_OPERATORS, WorkerOperator
from tracelake.ports import ObjectStore
from tracelake.worker.wrapper import Wrapper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbers_dag(attempts: int = 1, more: str = "") -> str:
    """The beginning of a DAG whose job `numbers` makes rows when `ask` is triggered."""
    return f"""
name: d
defaults: {{runtime: ecs_platform, max_attempts: {attempts}{more}}}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: numbers, operator: numbers, inputs: [{{from: {{job: ask}}}}]}}
"""


@dataclass(frozen=True)
class OperatorSystem(OnDispatcher):
    spark: SparkSession
    resources: Resources
    folder: Path

    def worker(self, name: str = "worker") -> Wrapper:
        return self.walk.worker(name, spark=self.spark, resources=self.resources)

    async def run(self, dag: str, job: str, **scope: Any) -> dict[str, list[str]]:
        """Trigger, and work until nothing is left to do; return the tasks' states by job."""
        async with working(self.worker()):
            await self.trigger(dag, job, **scope)
            return await self.settled()

    async def settled(self) -> dict[str, list[str]]:
        """Wait until no outbox entry is left and no task is queued or running."""
        await self.until(
            "SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'Done')"
            " AND NOT EXISTS (SELECT FROM tasks WHERE status IN ('Queued', 'Running'))"
        )
        rows = await self.fetch(
            "SELECT j.name, array_agg(t.status::text ORDER BY t.id) AS states"
            " FROM tasks t JOIN jobs j ON j.id = t.job_id GROUP BY 1"
        )
        return {row["name"]: row["states"] for row in rows}

    async def error(self, job: str) -> str:
        """Return the error of the last failed task of a job."""
        message = await self.walk.control.pool.fetchval(
            "SELECT t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.name = $1 AND t.error_message IS NOT NULL ORDER BY t.id DESC LIMIT 1",
            job,
        )
        return str(message)

    async def partitions(self, name: str, commit: int | None = None) -> list[Mapping[str, Any]]:
        """Return the current partitions, or those at a commit, of the dataset published by this name."""
        rows = await self.fetch(
            "SELECT p.partition_key, p.location, p.files::text, p.row_count, p.valid_from"
            " FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid"
            " JOIN dag_current_versions a ON a.org_id = d.org_id AND a.dag_name = d.producer_dag_name"
            " JOIN dag_version_datasets s"
            "   ON s.dag_version_id = a.dag_version_id AND s.dataset_version = p.dataset_version"
            " WHERE d.name = $1 AND p.valid_from <= coalesce($2, p.valid_from)"
            " AND (p.valid_to IS NULL OR p.valid_to > $2) ORDER BY lower(p.block_range), p.partition_key",
            name,
            commit,
        )
        return [{**dict(row), "files": msgspec.json.decode(row["files"])} for row in rows]

    async def table(self, name: str, commit: int | None = None) -> pa.Table:
        """Return the dataset's rows from its current files."""
        return pa.concat_tables(
            table for partition in await self.partitions(name, commit) for table in self._tables(partition)
        )

    async def rows_by_partition(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of each current partition from its files, as they lie there."""
        return {
            partition["partition_key"]: [row for table in self._tables(partition) for row in table.to_pylist()]
            for partition in await self.partitions(name)
        }

    def _tables(self, partition: Mapping[str, Any]) -> Iterator[pa.Table]:
        for file in partition["files"]:
            body = self.walk.control.objects.get(Folder.parse(partition["location"]).object(file["name"]))
            yield pq.read_table(pa.BufferReader(body))

    async def rows(self, name: str, commit: int | None = None) -> list[dict[str, Any]]:
        """The same as dictionaries, sorted."""
        found = (await self.table(name, commit)).to_pylist()
        return sorted(found, key=lambda row: [(value is None, str(type(value)), value) for value in row.values()])

    async def dataset(self, name: str) -> UUID:
        return cast("UUID", await self.walk.control.pool.fetchval("SELECT id FROM datasets WHERE name = $1", name))


@asynccontextmanager
async def operator_system(
    state_db: str,
    queue_db: str,
    tmp_path: Path,
    spark: SparkSession,
    objects: ObjectStore | None = None,
    *,
    beat_seconds: float = 5.0,
) -> AsyncIterator[OperatorSystem]:
    """Files on a disk, unless another store is given."""
    files = tmp_path / "files"
    files.mkdir()
    async with walking(state_db, queue_db, tmp_path, objects=objects, beat_seconds=beat_seconds) as walk:
        yield OperatorSystem(walk, spark, Resources(folder=files), tmp_path)


@contextmanager
def operator(
    name: str,
    run: Callable[[TaskContext[Any]], Outcome | None],
    *,
    config: type[OperatorConfig] | None = None,
    **spec: Any,
) -> Iterator[None]:
    """Register an operator of the test inside the block."""
    given = config or OperatorConfig
    of_ours: dict[str, Any] = {"storages": (Storage.PARQUET,), "narrows": every_input, **spec}
    made = OperatorSpec(checked_by(given), frozenset({"ecs_platform"}), **of_ours)
    known = cast("dict[str, WorkerOperator]", WORKER_OPERATORS)
    known[name] = WorkerOperator(made, given, run)
    try:
        yield
    finally:
        del known[name]


@dataclass
class Numbers:
    """A source of rows for tests: one for each number of the range, with the current `value`."""

    value: Callable[[int], Any] = field(default=lambda number: number * 10)

    def __call__(self, ctx: TaskContext[Any]) -> None:
        for output in ctx.outputs:
            for part in ctx.parts(output):
                span = part if isinstance(part, Range) else Range(0, 10)
                numbers = list(range(span.start, span.stop))
                output.write_table(
                    pa.table({"block_number": numbers, "value": [self.value(number) for number in numbers]}), part
                )
