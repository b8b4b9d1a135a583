"""Releases, rollbacks, activations, reorganisations, kills: what serves ends row for row as if built from scratch.

On Spark and in files: `tests/laws/test_versions_law.py` shows it for partitions and commits, in longer histories. Here
the rows are read from the files of the current partitions, and compared with the meaning, in Python, of the queries
of the active versions, over the rows that the source has at the end.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.query_variants import MILLS, SHOPS, ForkedNumbers, built_from_scratch
from tests.support.dispatcher.releases import abandoned, promoted, rolled_back, start, started, state_of
from tests.support.faults.deaths import Died, DiesAt, dying
from tests.support.systems.operators import OperatorSystem, operator, operator_system
from tests.support.systems.walk import HoldsOne, working
from tests.support.verbs import activate_dag, invalidate
from tests.support.waiting import until
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.domain.access.object_names import Folder
from tracelake.domain.ranges import Range, format_partition_key
from tracelake.errors import LeaseLost
from tracelake.wire.user.backfills import Gaps, GapsQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

STEPS = 12
"""Of a history, at least: none ends before each kind of step has happened in it."""
PER_SEED = 100
"""Histories of `--version-examples` that this one, on Spark, stands for."""
SIZE = 4
QUERIES = """
SELECT j.name, j.config ->> 'query' AS query
  FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE j.operator = 'sql'
"""
FORMER = """
SELECT v.dag_name, v.id, c.dag_version_id AS active
  FROM dag_versions v JOIN dag_current_versions c ON c.dag_name = v.dag_name AND c.dag_version_id <> v.id
 WHERE v.dag_name IN ('mill', 'shop')
 ORDER BY v.created_at
"""
IS_SETTLED = """
SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'Done')
   AND NOT EXISTS (SELECT FROM catch_ups WHERE walked_at IS NULL OR due_at <= now())
   AND NOT EXISTS (
       SELECT FROM tasks
        WHERE status IN ('Queued', 'Running') OR status = 'Failed' AND next_retry_at IS NOT NULL)
"""
FAILED = """
SELECT DISTINCT j.name, t.error_message
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
 WHERE t.status = 'Failed' AND t.error_message IS NOT NULL
"""
SCHEMA = "the schema changed within a generation"
ASKED = "SELECT id FROM datasets WHERE producer_dag_name = 'mill' AND producer_job_name = 'ask'"
RETRY_NOW = "UPDATE tasks SET next_retry_at = now() WHERE status = 'Failed' AND next_retry_at > now()"
END_LEASE = "UPDATE tasks SET lease_expires_at = now() WHERE id = $1 AND status = 'Running' AND attempt = $2"
ENDED = "SELECT status NOT IN ('Queued', 'Running') AND attempt > $2 FROM tasks WHERE id = $1"
FORMER_GENERATION = """
UPDATE dag_version_datasets s
   SET dataset_version = f.dataset_version
  FROM dag_version_datasets f, dag_current_versions c, datasets d
 WHERE c.dag_version_id = s.dag_version_id AND f.dataset_uuid = s.dataset_uuid AND d.id = s.dataset_uuid
   AND d.name = 'made' AND f.dataset_version <> s.dataset_version
"""
T = TypeVar("T")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        histories = metafunc.config.getoption("--version-examples") // PER_SEED
        metafunc.parametrize("seed", range(1, 2 + histories))


@dataclass
class History:
    """What happens to two DAGs of `sql` jobs; two Dispatchers are asked in turn."""

    system: OperatorSystem
    other: Control
    source: ForkedNumbers
    dice: random.Random
    spans: list[Range] = field(default_factory=list)
    building: UUID | None = None
    serving: UUID | None = None
    """The release that was promoted last, while it can be rolled back."""
    happened: Counter[str] = field(default_factory=Counter)
    worker: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def control(self) -> Control:
        return self.system.walk.control

    async def begin(self) -> None:
        await self.system.deploy(MILLS[0])
        await self.system.deploy(SHOPS[0])
        await self.worker.enter_async_context(working(self.system.worker()))
        await self.extend()
        await self.extend()
        await self.expect_as_from_scratch()

    async def play(self) -> None:
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "release": self.release,
            "promote": self.promote,
            "promote, dying": self.promote_dying,
            "roll back": self.roll_back,
            "abandon": self.abandon,
            "activate": self.activate,
            "reorganize": self.reorganize,
            "extend": self.extend,
            "kill a worker": self.kill_worker,
        }
        tried: Counter[str] = Counter()
        while sum(tried.values()) < STEPS or set(steps) - set(self.happened):
            assert sum(tried.values()) < 10 * STEPS, (tried, self.happened)
            possible = [name for name in steps if await self.is_possible(name)]
            least = min(tried[name] for name in possible)
            name = self.dice.choice([name for name in possible if tried[name] == least])
            tried[name] += 1
            await steps[name]()

    async def is_possible(self, step: str) -> bool:
        match step:
            case "promote" | "promote, dying" | "abandon":
                return self.building is not None
            case "roll back":
                return self.serving is not None
            case "activate":  # else a version is refused that would leave the group it was released with
                return self.serving is None and bool(await self.system.fetch(FORMER))
        return True

    async def extend(self) -> None:
        """The source has another range."""
        first = SIZE * len(self.spans)
        self.spans.append(Range(first, first + SIZE))
        await self.system.trigger("mill", "ask", start=first, end=first + SIZE - 1)
        self.happened["extend"] += 1

    async def release(self) -> None:
        """Of a variant of either DAG, or of both; a release that still builds is replaced."""
        both = self.dice.choice(MILLS), self.dice.choice(SHOPS)
        texts = self.dice.choice([both, both[:1], both[1:]])
        answer = await start(self.control, self.system.walk.org, *texts)
        if answer.release is not None:
            self.building = answer.release.id
            self.happened["release"] += 1

    async def promote(self) -> None:
        await self._promote("promote")

    async def promote_dying(self) -> None:
        await self._promote("promote, dying", self.dice.choice(("before_commit", "after_commit")))

    async def _promote(self, step: str, dies: str | None = None) -> None:
        release, self.building = self.building, None
        assert release is not None
        force = self.dice.random() < 0.3  # while it still builds
        if not force:
            await self.until("SELECT state <> 'Building' FROM releases WHERE id = $1", release)
        org = self.system.walk.org
        await self._ask("promote_release", dies, lambda control: promoted(control, org, release, force=force))
        assert await state_of(self.control, org, release) == "Serving"
        self.serving = release
        self.happened[step] += 1
        await self.expect_as_from_scratch()

    async def roll_back(self) -> None:
        release, self.serving = self.serving, None
        assert release is not None
        dies, org = self.dice.choice((None, "before_commit", "after_commit")), self.system.walk.org
        await self._ask("rollback_release", dies, lambda control: rolled_back(control, org, release))
        assert await state_of(self.control, org, release) == "Standby"
        await self._forget_overtaken()
        self.happened["roll back"] += 1
        await self.expect_as_from_scratch()

    async def abandon(self) -> None:
        release, self.building = self.building, None
        assert release is not None
        await abandoned(self.control, self.system.walk.org, release)
        self.happened["abandon"] += 1

    async def activate(self) -> None:
        """Alone and at once.

        Where a job of the other DAG reads all columns, and they are others now, its outputs are refused. That is a gap,
        and there is none when the former version is active again.
        """
        row = self.dice.choice(await self.system.fetch(FORMER))
        dies, org = self.dice.choice((None, "before_commit", "after_commit")), self.system.walk.org.id
        await self._ask("activate_dag", dies, lambda control: activate_dag(control, org, row["dag_name"], row["id"]))
        await self.settle()
        if not (await self.gaps("shop")).complete:
            errors = {(task["name"], SCHEMA in task["error_message"]) for task in await self.system.fetch(FAILED)}
            assert errors == {("sold", True)}, await self.gaps("shop")
            await activate_dag(self.control, org, row["dag_name"], row["active"])
        await self._forget_overtaken()
        self.happened["activate"] += 1
        await self.expect_as_from_scratch()

    async def _forget_overtaken(self) -> None:
        """A release that was planned with other active versions is abandoned."""
        if self.building and await state_of(self.control, self.system.walk.org, self.building) == "Abandoned":
            self.building = None

    async def reorganize(self) -> None:
        """A range has other rows; its readers run again, and may be running on the former ones."""
        span = self.dice.choice(self.spans)
        self.source.fork(span, self.dice)
        (row,) = await self.system.fetch(ASKED)
        where = {"start": span.start, "end": span.stop - 1, "reason": "reorg", "request_id": uuid4()}
        await invalidate(self.control, self.system.walk.org.id, self.system.walk.org.user, row["id"], **where)
        self.happened["reorganize"] += 1

    async def kill_worker(self) -> None:
        """It has written its files and reports nothing; another finishes the task, and then it reports after all."""
        control = self.control
        async with self.without_worker():
            await self.reorganize()
            real = self.system.worker("killed")
            killed = HoldsOne(real.runner, self.dice.choice(("numbers", "made")))
            async with working(replace(real, runner=killed)):
                try:
                    await until(killed.written.is_set, "a task is held")
                    assert killed.held is not None
                    of_held = killed.held.task.task_id, killed.held.attempt
                    if self.dice.random() < 0.5:  # what it has written is not even the newest
                        await self.reorganize()
                    await control.pool.execute(END_LEASE, *of_held)
                    control.after_commit.leases.notify()
                    async with working(self.system.worker("next")):
                        await self.until(ENDED, *of_held)
                finally:
                    killed.let_go.set()
        assert killed.late is not None
        assert killed.late.request.status == "Completed"
        with pytest.raises(LeaseLost):
            await self.system.walk.tasks.complete(killed.held.capability_token, killed.late.request)
        self.happened["kill a worker"] += 1

    @asynccontextmanager
    async def without_worker(self) -> AsyncIterator[None]:
        """The worker is stopped meanwhile."""
        await self.worker.aclose()
        try:
            yield
        finally:
            await self.worker.enter_async_context(working(self.system.worker()))

    async def _ask(self, verb: str, dies: str | None, ask: Callable[[Control], Awaitable[T]]) -> T:
        """If the Dispatcher dies at it, the other one is asked again."""
        if dies is None:
            return await ask(self.control)
        with pytest.raises(Died), dying(DiesAt(f"{verb}.{dies}")):
            await ask(self.control)
        return await ask(self.other)

    async def until(self, sql: str, *values: Any) -> None:
        """What is to be tried again, or to be looked at again, is so at once."""

        async def reached() -> bool:
            await self.control.pool.execute(RETRY_NOW)
            return bool(await self.control.pool.fetchval(sql, *values))

        await until(reached, f"{sql} {values} is true")

    async def settle(self) -> None:
        """Until everything is done, and no comparison of an input with what was processed creates more."""
        done = None
        while done != (done := await self.control.pool.fetchval("SELECT count(*) FROM tasks")) or done is None:
            await self.control.pool.execute("UPDATE catch_ups SET due_at = now()")
            self.control.after_commit.catch_up.notify()
            await self.until(IS_SETTLED)

    async def expect_as_from_scratch(self) -> None:
        """Each current partition has the rows of a build from scratch, and no others, and nothing is missing."""
        await self.settle()
        assert await differences(self.system, self.source, self.spans) == {}
        for dag in ("mill", "shop"):
            gaps = await self.gaps(dag)
            assert gaps.complete, gaps

    async def gaps(self, dag: str) -> Gaps:
        return await list_gaps(self.control.pool, self.system.walk.org.as_user, GapsQuery(of=dag))


async def differences(system: OperatorSystem, source: ForkedNumbers, spans: list[Range]) -> dict[str, Any]:
    """Datasets whose current partitions are others than built from scratch: both, of each.

    What serves is read from the database, as queries do; nothing of it is known from what the test did.
    """
    queries = {row["name"]: row["query"] for row in await system.fetch(QUERIES)}
    found = {}
    for name, built in built_from_scratch(source, spans, queries).items():
        served = as_sets(await system.rows_by_partition(name))
        scratch = as_sets({format_partition_key(span): rows for span, rows in built.items()})
        if served != scratch:
            found[name] = served, scratch
    return found


def as_sets(partitions: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[list[tuple[str, Any]]]]:
    """Each row as often as it is there, in an order that does not depend on how the rows were written."""
    return {key: sorted(sorted(row.items()) for row in rows) for key, rows in partitions.items()}


@asynccontextmanager
async def a_history(dsns: tuple[str, str], folder: Path, spark: SparkSession, seed: int) -> AsyncIterator[History]:
    source = ForkedNumbers()
    async with (
        operator_system(*dsns, folder, spark, beat_seconds=0.25) as system,
        control_for(*dsns, folder, replica="two") as other,
    ):
        with operator("numbers", source):
            history = History(system, other, source, random.Random(seed))  # noqa: S311 - a history of the test
            async with history.worker:
                await history.begin()
                yield history


async def test_every_serving_dataset_is_row_for_row_as_if_built_from_scratch(
    state_db: str, queue_db: str, tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    async with a_history((state_db, queue_db), tmp_path, spark, seed) as history:
        await history.play()
        await history.expect_as_from_scratch()


async def test_a_wrong_row_or_partition_or_generation_is_found(
    state_db: str, queue_db: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The comparison of the test above sees each of these damages of what was right before, and is right after it."""
    async with a_history((state_db, queue_db), tmp_path, spark, 1) as history:
        system = history.system
        history.building = await started(history.control, system.walk.org, MILLS[2])
        await history.promote()
        _, second = await system.partitions("made")
        (file,) = second["files"]
        name = Folder.parse(second["location"]).object(file["name"])
        objects = system.walk.control.objects
        body = objects.get(name)
        intact = pq.read_table(pa.BufferReader(body))
        damages = {
            "another value": intact.set_column(2, "amount", pc.add(intact["amount"], 1)),
            "a row twice": pa.concat_tables([intact, intact.slice(0, 1)]),
            "a row missing": intact.slice(1),
            "a column of another name": intact.rename_columns(["block_number", "item", "total"]),
            "another partition": intact.set_column(0, "block_number", pc.subtract(intact["block_number"], SIZE)),
        }
        assert intact.num_rows
        found = {}
        for damage, rows in damages.items():
            objects.put(name, parquet_of(rows), replace=True)
            found[damage] = set(await differences(system, history.source, history.spans))
        objects.put(name, body, replace=True)
        await history.expect_as_from_scratch()
        changed = await history.control.pool.execute(FORMER_GENERATION)
        assert changed == "UPDATE 1"
        found["another generation"] = set(await differences(system, history.source, history.spans))
        assert found == {damage: {"made"} for damage in (*damages, "another generation")}


def parquet_of(rows: pa.Table) -> bytes:
    with io.BytesIO() as written:
        pq.write_table(rows, written)
        return written.getvalue()
