"""Whatever is activated, released, rolled back, failed or lost, what serves ends as if built from scratch.

Two Dispatchers take turns and work at once; one dies at a commit, and the other goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.support.dispatcher.control import PULL, control_for, deployed_and_active
from tests.support.dispatcher.mill import READER, MillMachine, asked, run_machine, variants
from tests.support.dispatcher.releases import abandoned, build, promoted, rolled_back, start
from tests.support.dispatcher.run_tasks import Held, caught_up, claim_one, drain, finish, run_some, settle
from tests.support.faults.deaths import Died, DiesAt, dying
from tests.support.operators import registered
from tests.support.verbs import invalidate, pause_job, resume_job
from tracelake.dispatcher.dags.deactivate import deactivate_dag
from tracelake.dispatcher.dags.delete import delete_dag
from tracelake.dispatcher.versions.gaps import list_gaps
from tracelake.dispatcher.versions.run_backfills import RunBackfills
from tracelake.dispatcher.versions.start_backfill import start_backfill
from tracelake.domain.crash_points import POINTS
from tracelake.errors import BadInput, Conflict, InvalidDag, LeaseLost, NotFound
from tracelake.settings import LoopSettings
from tracelake.wire.user.backfills import BackfillRequest, GapsQuery

VARIANTS = variants("pull", "flour: {job: grind}")
SPANS = [(start, start + 9) for start in range(0, 50, 10)]
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
VERBS = ("activate_dag", "deactivate_dag", "catch_up", "start_backfill", "run_backfill")
DEATHS = [point for point in POINTS if point.partition(".")[0].endswith(("_release", "_releases", *VERBS))]
T = TypeVar("T")
ACTIVE = "SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2"
# A range that was asked for again is made again if another version has become active since: once for each time at most.
TWICE = """
SELECT j.name, t.input_versions::text, count(*)
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  LEFT JOIN events e ON e.id = t.event_id AND e.origin NOT IN ('task', 'sink')
 WHERE t.org_id = $1 AND t.status = 'Completed' AND t.invalidation_id IS NULL AND t.dedupe_key NOT LIKE '%:again:%'
   AND t.attempt = 1 -- not retried by hand: a release may have built meanwhile what failed in the active version
 GROUP BY j.lineage_id, j.name, t.input_versions
HAVING count(*) > greatest(1, count(DISTINCT e.id))
"""


class VersionMachine(MillMachine):
    def __init__(self) -> None:
        super().__init__()
        self.other = self.do(self.stack.enter_async_context(control_for(*self.dsns, self.folder, replica="two")))
        self.dies: DiesAt | None = None
        self.asked: set[tuple[int, int]] = set()
        self.held: list[Held] = []
        self.sells = False

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """None if the Dispatcher dies at it: then the other one is asked from now on."""
        try:
            with dying(getattr(self, "dies", None)):
                return super().do(work)
        except Died:
            self.dies = None
            self.take_turns()
            return None  # type: ignore[return-value]

    @rule()
    def take_turns(self) -> None:
        """The other Dispatcher is asked, with what it remembers."""
        self.control, self.other = self.other, self.control

    @rule(point=st.sampled_from(DEATHS))
    def kill(self, point: str) -> None:
        """The Dispatcher that passes this point next dies there."""
        self.dies = DiesAt(point)

    @rule()
    def work_at_once(self) -> None:
        """The loops of both; a loop that Postgres ends because of a deadlock goes on at its next beat, as always."""
        self.do(self._work_at_once())

    async def _work_at_once(self) -> None:
        both = self.control, self.other
        done = await asyncio.gather(*map(drain, both), *map(caught_up, both), return_exceptions=True)
        for error in done:
            if error is not None and not isinstance(error, asyncpg.DeadlockDetectedError):
                raise error

    @initialize(variant=st.sampled_from(VARIANTS))
    def begin(self, variant: str) -> None:
        self.deploy_first(variant)

    @rule(variant=st.sampled_from(VARIANTS))
    def activate(self, variant: str) -> None:
        """Refused for one DAG of a group that was released together, if it would go back alone."""
        with suppress(Conflict):
            self.deploy(variant)

    @rule()
    def open_shop(self) -> None:
        with suppress(InvalidDag):  # while nothing publishes what it reads
            self.do(deployed_and_active(self.control, self.org, READER))
            self.sells = True

    @rule(dag=st.sampled_from(["mill", "shop"]))
    def deactivate(self, dag: str) -> None:
        """Refused while others read what it publishes."""
        with suppress(Conflict, NotFound):
            self.do(deactivate_dag(self.control.pool, self.control.after_commit, self.org.id, dag))

    @rule(dag=st.sampled_from(["mill", "shop"]))
    def delete(self, dag: str) -> None:
        """Refused while it is active, or others read it. What the source was asked for is gone with the DAG."""
        with suppress(Conflict, NotFound):
            self.do(delete_dag(self.control.pool, self.org.as_user, dag))
            self.asked -= self.asked if dag == "mill" else set()

    @rule(job=st.sampled_from(["grind", "bake"]), verb=st.sampled_from([pause_job, resume_job]))
    def pause(self, job: str, verb: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        with suppress(Conflict, NotFound):
            self.do(verb(self.control, self.org.as_user, "mill", job))

    @rule(span=st.sampled_from([None, *SPANS]), job=st.sampled_from(["grind", "bake"]), again=st.booleans())
    def backfill(self, span: tuple[int, int] | None, job: str, *, again: bool) -> None:
        """Refused where nothing is in the range. Without a range, of what all jobs lack."""
        start, end = span or (None, None)
        request = BackfillRequest(job=job if span else None, start=start, end=end, again=again and span is not None)
        with suppress(Conflict, NotFound, BadInput):
            notify = self.control.after_commit.backfills
            self.do(start_backfill(self.control.pool, notify, self.org.as_user, "mill", request))

    @rule(variant=st.sampled_from(VARIANTS), when_ready=st.booleans())
    def release(self, variant: str, *, when_ready: bool) -> None:
        self.do(start(self.control, self.org, variant, when_ready=when_ready))

    @rule(verb=st.sampled_from([promoted, rolled_back, abandoned]), force=st.booleans())
    def change_release(self, verb: Callable[..., Coroutine[Any, Any, Any]], *, force: bool) -> None:
        self.change_newest_release(verb, force=force)

    @rule()
    def build(self) -> None:
        self.do(build(self.control))

    @rule(span=st.sampled_from(SPANS))
    def ask(self, span: tuple[int, int]) -> None:
        with suppress(Conflict, NotFound):  # the DAG may not be active
            self.do(asked(self.control, self.org, span))
            self.asked.add(span)

    @rule(span=st.sampled_from(SPANS))
    def reorganize(self, span: tuple[int, int]) -> None:
        with suppress(Conflict, NotFound):  # the DAG may not be active
            self.do(self._invalidate(span))

    @rule(dag=st.sampled_from(["mill", "shop"]))
    def look_at_gaps(self, dag: str) -> None:
        """At any instant each partition that is there is done, pending or failed: none twice, and none is left out."""
        with suppress(Conflict, NotFound):  # while the DAG is not active, or not there
            self.do(self._covered(dag))

    async def _covered(self, dag: str) -> None:
        there = {row["key"] for row in await self.control.pool.fetch(FLOUR, self.org.id)}
        found = await list_gaps(self.control.pool, self.org.as_user, GapsQuery(of=dag))
        for item in found.inputs:
            if item.job in {"bake", "sell"}:  # they read flour
                assert item.planned == item.done + item.pending + item.failed == len(there), (item, there)

    @rule()
    def route(self) -> None:
        self.do(drain(self.control))

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

    async def _invalidate(self, span: tuple[int, int]) -> None:
        dataset = await self.control.pool.fetchval(
            "SELECT id FROM datasets WHERE producer_job_name = 'ask' AND org_id = $1", self.org.id
        )
        named = {"start": span[0], "end": span[1], "reason": "reorg", "request_id": uuid4()}
        await invalidate(self.control, self.org.id, self.org.user, dataset, **named)

    def teardown(self) -> None:
        self.dies = None
        super().teardown()

    async def check(self) -> None:
        await self._serve_again()
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
            gaps = await list_gaps(pool, self.org.as_user, GapsQuery(of=dag))
            assert gaps.complete, gaps

    async def _serve_again(self) -> None:
        """Nothing is paused or inactive at the end."""
        for dag, variant in (("mill", VARIANTS[0]), *((("shop", READER),) if self.sells else ())):
            if not await self.control.pool.fetchval(ACTIVE, self.org.id, dag):
                await deployed_and_active(self.control, self.org, variant)
        for job in ("grind", "bake"):
            await resume_job(self.control, self.org.as_user, "mill", job)
        loop = RunBackfills(self.control.pool, self.control.after_commit, LoopSettings())
        while await loop.once():
            await settle(self.control)

    async def _finish_all(self) -> None:
        for task in self.held:
            with suppress(Conflict, LeaseLost):
                await finish(self.control, task)
        await self.run_all()


def test_every_serving_dataset_is_as_if_built_from_scratch(
    state_db: str, queue_db: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with registered(pull=PULL):
        run_machine(VersionMachine, (state_db, queue_db), tmp_path, request.config.getoption("--version-examples"))
