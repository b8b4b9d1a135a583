"""Tiers and turns: what a flood does to tasks that are not part of it, and what share the flood gets.

One worker of the product, whose tasks only wait. In turns, without and with a flood, a trickle of tasks is measured
from its event to its completion: of the normal tier while the bulk tier is flooded, and of one organisation while
another floods the normal tier. Then both tiers have a backlog, and the bulk tasks among those that run are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from statistics import quantiles
from typing import Any
from uuid import UUID

import uvloop

from bench.noop_worker import ask, hand_to_workers
from bench.product_worker import Counted, product_working
from bench.report import report
from bench.rig import Rig, rig
from tracelake.operators.api.outcome import Outcome
from tracelake.wire.task.lifecycle import TaskPayload

SLOTS = 16
TURNS = 2
SECONDS = {"tip": 0.05, "flood": 0.01, "bulk": 0.01}
"""How long each job's tasks take."""
EVERY_SECONDS = 0.04
SHARE = 1 / 21
STEPS = ("until routed", "until published", "until received", "until claimed", "until completed", "all")
"""Of a task: when its routing began, when its wake-up was published, when the worker received it, when its claim was
stored, and when its completion was."""
Steps = list[float]
DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: tip, operator: noop, inputs: [{from: {job: ask}}]}
  - {name: ask_flood, operator: noop, source: {kind: manual}}
  - {name: flood, operator: noop, inputs: [{from: {job: ask_flood}}]}
  - {name: ask_bulk, operator: noop, source: {kind: manual}}
  - {name: bulk, operator: noop, priority: bulk, inputs: [{from: {job: ask_bulk}}]}
"""
STORE = """
WITH accepted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)
    SELECT d.org_id, 'manual', 'cursor', uuidv7(), d.id, s.dataset_version, 'cursor:' || n, n
      FROM datasets d
      JOIN dag_version_datasets s ON s.dataset_uuid = d.id, generate_series($3::bigint, $3::bigint + $4::bigint - 1) n
     WHERE d.org_id = $1 AND d.producer_job_name = $2
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted
)
SELECT pg_notify('trace_control', 'outbox')
"""
TOOK = """
SELECT t.id, extract(epoch FROM e.created_at)::float AS stored, extract(epoch FROM t.created_at)::float AS routed,
       extract(epoch FROM t.started_at)::float AS claimed, extract(epoch FROM t.completed_at)::float AS completed
  FROM tasks t JOIN jobs j ON j.id = t.job_id JOIN events e ON e.id = t.event_id
 WHERE j.org_id = $1 AND j.name = $2 AND e.cursor_value >= $3 AND t.completed_at IS NOT NULL
"""
STARTED = """
SELECT j.name FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name IN ('flood', 'bulk') AND t.started_at >= $1 ORDER BY t.started_at LIMIT $2
"""
QUEUED = "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status = 'Queued' AND j.name = $1"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100, help="measured tasks in each turn")
    size = parser.parse_args().size
    async with rig() as system:
        other = await _organisations(system)
        async with product_working(system, SLOTS, _wait) as worker:
            await _trickle(system, worker, other, 1, 20)  # warms connections and plans
            under_bulk, bulk_steps = await _compare(system, worker, other, size, flooded=(system.org_id, "bulk"))
            beside, beside_steps = await _compare(system, worker, other, size, flooded=(system.org_id, "flood"))
            share = await _bulk_share(system, worker, size)
    report(
        "fairness",
        under_bulk,
        "normal p99 under a bulk flood, of without",
        bulk_share=round(share / SHARE, 2),
        other_organisation=round(beside, 2),
        steps_ms={"bulk": bulk_steps, "other_organisation": beside_steps},
        settings={"tasks": size, "slots": SLOTS, "normal_for_each_bulk": 20, "turns": TURNS},
    )


def _wait(task: TaskPayload) -> Outcome:
    time.sleep(SECONDS.get(task.job.name, 0.0))
    return Outcome()


async def _organisations(system: Rig) -> UUID:
    """A second one; both have the same DAG."""
    other = await system.pool.fetchval("INSERT INTO orgs (name, slug) VALUES ('other', 'other') RETURNING id")
    sql = "INSERT INTO users (org_id, external_id, role) VALUES ($1, 'local|other', 'admin')"
    await system.pool.execute(sql, other)
    for user in ("local|admin", "local|other"):
        version = await ask(system, "POST", "/dags/bench/versions", {"yaml": DAG}, user)
        await ask(system, "PUT", "/dags/bench/active", {"dag_version_id": version["dag_version_id"]}, user)
    await hand_to_workers(system, "tip", "flood", "bulk")
    return UUID(str(other))


async def _compare(
    system: Rig, worker: Counted, org: UUID, size: int, *, flooded: tuple[UUID, str]
) -> tuple[float, dict[str, list[float]]]:
    """The ratio of the p99, with the flood to without; and of each step p50 and p99, without and with it."""
    found: dict[bool, list[Steps]] = {False: [], True: []}
    flood, first = _Flood(system, *flooded), time.time_ns() // 1000
    for turn in range(2 * TURNS):
        first += 10 * size
        if turn % 2 == 0:
            found[False] += await _trickle(system, worker, org, first, size)
            continue
        flooding = asyncio.create_task(flood.keep_up())
        await _until(flood.is_on)
        found[True] += await _trickle(system, worker, org, first, size)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        await _until(flood.is_over)
    table = {
        step: [_ms([steps[at] for steps in found[on]], percent) for on in (False, True) for percent in (50, 99)]
        for at, step in enumerate(STEPS)
    }
    return _p99([steps[-1] for steps in found[True]]) / _p99([steps[-1] for steps in found[False]]), table


class _Flood:
    """Keeps a backlog of a job's tasks."""

    def __init__(self, system: Rig, org: UUID, job: str, backlog: int = 1000) -> None:
        self._system, self._org, self._job, self._backlog = system, org, job, backlog
        self._next = time.time_ns() // 1000

    async def keep_up(self) -> None:
        while True:
            if await self._queued() < self._backlog:
                await self._system.pool.execute(STORE, self._org, f"ask_{self._job}", self._next, self._backlog)
                self._next += self._backlog
            await asyncio.sleep(0.5)

    async def is_on(self) -> bool:
        return await self._queued() > 0

    async def is_over(self) -> bool:
        return await self._queued() == 0

    async def _queued(self) -> int:
        return int(await self._system.pool.fetchval(QUEUED, self._job))


async def _trickle(system: Rig, worker: Counted, org: UUID, first: int, size: int) -> list[Steps]:
    """How long each step of each task took, and last all of them: from its event to its completion."""
    for number in range(size):
        await system.pool.execute(STORE, org, "ask", first + number, 1)
        await asyncio.sleep(EVERY_SECONDS)
    rows: list[Any] = []

    async def all_over() -> bool:
        nonlocal rows
        rows = await system.pool.fetch(TOOK, org, "tip", first)
        return len(rows) >= size

    await _until(all_over)
    return [_steps(row, *worker.queue.received[row["id"]]) for row in rows]


def _steps(row: Any, published: float, received: float) -> Steps:
    moments = row["stored"], row["routed"], published, received, row["claimed"], row["completed"]
    return [*(later - earlier for earlier, later in pairwise(moments)), moments[-1] - moments[0]]


async def _bulk_share(system: Rig, worker: Counted, size: int) -> float:
    """Of the tasks that were started while both tiers had a backlog, the share that was bulk."""
    count, first = 20 * size, time.time_ns() // 1000
    for job in ("bulk", "flood"):
        await system.pool.execute(STORE, system.org_id, f"ask_{job}", first, count)
        flood = _Flood(system, system.org_id, job)
        await _until(flood.is_on)
    began, done = await system.pool.fetchval("SELECT now()"), worker.done
    await worker.wait_for(done + 10 * size)
    jobs = [job for (job,) in await system.pool.fetch(STARTED, began, 10 * size)]
    return jobs.count("bulk") / len(jobs)


async def _until(done: Callable[[], Awaitable[bool]]) -> None:
    while not await done():  # noqa: ASYNC110 - it is another process that works
        await asyncio.sleep(0.02)


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


def _ms(seconds: list[float], percent: int) -> float:
    return round(1000 * quantiles(seconds, n=100)[percent - 1], 1)


if __name__ == "__main__":
    uvloop.run(main())
