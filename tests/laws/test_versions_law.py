"""Whatever is activated, released, rolled back, failed or lost, what serves ends as if built from scratch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.releases import abandoned, build, promoted, rolled_back, start
from tests.support.dispatcher.run_tasks import Held, caught_up, claim_one, drain, finish, run_some, settle
from tests.support.operators import registered
from tests.support.verbs import invalidate, retry_task, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.maintenance.reconcile import Reconciler
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.errors import Conflict, LeaseLost
from tracelake.settings import RUNTIMES, LoopSettings
from tracelake.wire.user_backfills import GapsQuery

T = TypeVar("T")
MILL = """
name: mill
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ask, operator: pull, source: {{kind: manual}}}}
  - {{name: grind, operator: pull, config: {{n: {0}}}, inputs: [{{from: {{job: ask}}}}]}}
  - {{name: bake, operator: pull, config: {{n: {1}}}, inputs: [{{from: {{job: grind}}}}]}}
publish:
  flour: {{job: grind}}
"""
VARIANTS = [MILL.format(*numbers) for numbers in ((1, 1), (2, 1), (1, 2))]
SHOP = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: sell, operator: pull, inputs: [{from: {dataset: flour}}]}
"""
SPANS = [(start, start + 9) for start in range(0, 50, 10)]
SETTINGS = LoopSettings(reconcile_seconds=0.000001, reconcile_grace_seconds=0, reconcile_slice_seconds=1e6)
HELD = """
SELECT d.producer_job_name AS job, p.partition_key AS key, a.started_at, i.input_dataset_version AS read_version,
       i.input_commit AS read_commit
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
  JOIN commits m ON m.dataset_uuid = d.id AND m.number = p.valid_from
  JOIN task_attempts a ON a.task_id = m.task_id AND a.attempt = m.attempt
  JOIN task_inputs i ON i.task_id = m.task_id AND i.attempt = m.attempt
 WHERE d.org_id = $1
"""
FLOUR = """
SELECT p.partition_key AS key, p.dataset_version AS version, p.valid_from AS commit
  FROM datasets d
  JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
 WHERE d.org_id = $1 AND d.producer_job_name = 'grind'
"""
NEWEST = "SELECT id FROM releases WHERE org_id = $1 ORDER BY created_at DESC LIMIT 1"
TWICE = """
SELECT j.name, t.input_versions::text, count(*)
  FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE t.org_id = $1 AND t.status = 'Completed' AND t.invalidation_id IS NULL AND t.dedupe_key NOT LIKE '%:again:%'
 GROUP BY j.lineage_id, j.name, t.input_versions
HAVING count(*) > 1
"""


class VersionMachine(RuleBasedStateMachine):
    dsns: tuple[str, str] = ("", "")
    folder: Path = Path()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.control: Control = self.do(self.stack.enter_async_context(control_for(*self.dsns, self.folder)))
        self.asked: set[tuple[int, int]] = set()
        self.held: list[Held] = []
        self.sells = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(variant=st.sampled_from(VARIANTS))
    def begin(self, variant: str) -> None:
        self.org: Org = self.do(an_org(self.control.pool, f"o{uuid4().hex[:12]}"))
        self.activate(variant)

    @rule(variant=st.sampled_from(VARIANTS))
    def activate(self, variant: str) -> None:
        self.do(deployed_and_active(self.control, self.org, variant))

    @rule()
    def open_shop(self) -> None:
        self.do(deployed_and_active(self.control, self.org, SHOP))
        self.sells = True

    @rule(variant=st.sampled_from(VARIANTS), when_ready=st.booleans())
    def release(self, variant: str, *, when_ready: bool) -> None:
        self.do(start(self.control, self.org, variant, when_ready=when_ready))

    @rule(verb=st.sampled_from([promoted, rolled_back, abandoned]), force=st.booleans())
    def change_release(self, verb: Callable[..., Coroutine[Any, Any, Any]], *, force: bool) -> None:
        """The newest one; most of them cannot be changed so, and must not be."""
        release = self.do(self.control.pool.fetchval(NEWEST, self.org.id))
        how = {"force": force} if verb is promoted else {}
        if release is not None:
            with suppress(Conflict):
                self.do(verb(self.control, self.org, release, **how))

    @rule()
    def build(self) -> None:
        self.do(build(self.control))

    @rule(span=st.sampled_from(SPANS))
    def ask(self, span: tuple[int, int]) -> None:
        start, end = span
        self.do(trigger(self.control, self.org.id, "mill", "ask", start=start, end=end, request_id=uuid4()))
        self.asked.add(span)

    @rule(span=st.sampled_from(SPANS))
    def reorganize(self, span: tuple[int, int]) -> None:
        self.do(self._invalidate(span))

    @rule()
    def route(self) -> None:
        self.do(drain(self.control))

    @rule()
    def catch_up(self) -> None:
        self.do(caught_up(self.control))

    @rule(most=st.integers(1, 4), fail=st.booleans())
    def run_tasks(self, most: int, *, fail: bool) -> None:
        self.do(drain(self.control))
        self.do(run_some(self.control, most, fails=lambda _: fail))

    @rule()
    def claim(self) -> None:
        """A task that is still running when the next things happen."""
        self.do(drain(self.control))
        claimed = self.do(claim_one(self.control))
        if claimed is not None:
            self.held.append(claimed)

    @precondition(lambda self: self.held)
    @rule()
    def complete_late(self) -> None:
        with suppress(Conflict, LeaseLost):
            self.do(finish(self.control, self.held.pop(0)))

    @rule()
    def lose(self) -> None:
        """Outbox entries vanish, as if a row had been deleted by hand."""
        self.do(self.control.pool.execute("DELETE FROM outbox WHERE status = 'Pending'"))

    def teardown(self) -> None:
        try:
            if hasattr(self, "org"):
                self.do(self._check())
        finally:
            self.do(self.stack.aclose())
            self.loop.close()

    async def _invalidate(self, span: tuple[int, int]) -> None:
        dataset = await self.control.pool.fetchval(
            "SELECT id FROM datasets WHERE producer_job_name = 'ask' AND org_id = $1", self.org.id
        )
        named = {"start": span[0], "end": span[1], "reason": "reorg", "request_id": uuid4()}
        await invalidate(self.control, self.org.id, self.org.user, dataset, **named)

    async def _check(self) -> None:
        await self._finish_all()
        pool, org = self.control.pool, self.org.id
        keys = {f"{start}-{end}" for start, end in self.asked}
        invalid = {
            row["key"]: row["at"]
            for row in await pool.fetch(
                "SELECT block_range_key(block_range) AS key, max(created_at) AS at FROM data_invalidations"
                " WHERE org_id = $1 GROUP BY 1",
                org,
            )
        }
        flour = {row["key"]: (row["version"], row["commit"]) for row in await pool.fetch(FLOUR, org)}
        held = await pool.fetch(HELD, org)
        for job in ("grind", "bake", *(["sell"] if self.sells else [])):
            there = {row["key"] for row in held if row["job"] == job}
            missing = keys - there
            assert not missing, f"{job} lacks {missing}"
            # A range that was invalidated and never asked for is made too, as routing does.
            assert there <= keys | set(invalid), (job, there)
        for row in held:
            if row["job"] == "grind":
                assert row["key"] not in invalid or row["started_at"] >= invalid[row["key"]], f"stale {row}"
            elif row["key"] not in flour:
                # Another DAG keeps what an invalidation made of a range that nobody asked for, also when the version
                # of `mill` that made it no longer serves.
                assert row["job"] == "sell", row
                assert row["key"] not in keys, row
            else:
                version, commit = flour[row["key"]]
                assert row["read_version"] == version, f"{row} was made of another generation"
                assert row["read_commit"] >= commit, f"stale {row}"
        twice = [tuple(row) for row in await pool.fetch(TWICE, org)]
        assert not twice, twice
        for dag in ("mill", *(["shop"] if self.sells else [])):
            gaps = await list_gaps(pool, org, GapsQuery(of=dag))
            assert gaps.complete, gaps

    async def _finish_all(self) -> None:
        """What is lost is found, what failed is retried, and everything runs."""
        pool = self.control.pool
        for task in self.held:
            with suppress(Conflict, LeaseLost):
                await finish(self.control, task)
        while True:
            await Reconciler(pool, self.control.queue, RUNTIMES, self.control.after_commit.outbox, SETTINGS).once()
            await pool.execute("UPDATE catch_ups SET due_at = now()")
            ran = await settle(self.control)
            for failed in await self._failed():
                await retry_task(self.control, self.org.id, failed)
                ran += 1
            if not ran:
                return

    async def _failed(self) -> list[UUID]:
        rows = await self.control.pool.fetch(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id"
            " WHERE t.org_id = $1 AND t.status = 'Failed'",
            self.org.id,
        )
        return [row["id"] for row in rows]


def test_every_serving_dataset_is_as_if_built_from_scratch(
    state_db: str, queue_db: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    VersionMachine.dsns, VersionMachine.folder = (state_db, queue_db), tmp_path
    examples = request.config.getoption("--version-examples")
    with registered(pull=PULL):
        run_state_machine_as_test(
            VersionMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
