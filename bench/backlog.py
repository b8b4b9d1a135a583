"""A long backlog: how long lists of the API take while many tasks are queued, and how soon a new trigger's task runs.

The backlog is of one job; the trigger is of another job of the same organisation. One worker of the product takes
from both, its tasks take 10 ms. The backlog itself is timed too: from its trigger to the first task that runs; and a
trigger while its events still wait to become tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

import uvloop

from bench.noop_worker import ask, deploy, emit, hand_to_workers, trigger
from bench.product_worker import product_working
from bench.report import report
from bench.rig import Rig, rig
from tracelake.operators.api.outcome import Outcome
from tracelake.wire.task.lifecycle import TaskPayload

SLOTS = 8
TURNS = 5
DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: many, operator: noop, inputs: [{from: {job: ask}}]}
  - {name: ask_other, operator: noop, source: {kind: manual}}
  - {name: other, operator: noop, inputs: [{from: {job: ask_other}}]}
"""
LISTS = ("/tasks", "/tasks?status=Queued", "/tasks?dag=bench&job=other", "/dags/bench", "/in-flight", "/pauses")
RAN = "SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.started_at IS NOT NULL"
QUEUED = "SELECT count(*) FROM tasks WHERE status = 'Queued'"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="tasks that are queued")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "many", "other")
        async with product_working(system, SLOTS, _short):
            await _first_task(system, "other", 1)  # warms connections and plans
        await emit(system, "ask", size)
        began = time.perf_counter()
        await trigger(system, "ask", cursor=10**9)
        async with product_working(system, SLOTS, _short):
            first = await _until_ran(system, "many", 1, began)
            early = await _first_task(system, "other", 2)
            while await system.pool.fetchval(QUEUED) < 0.9 * size:  # noqa: ASYNC110 - another process routes them
                await asyncio.sleep(0.05)
            queued = await system.pool.fetchval(QUEUED)
            soon = [await _first_task(system, "other", 3 + turn) for turn in range(TURNS)]
            lists = {path: await _seconds(system, path) for path in LISTS}
    report(
        "backlog",
        max(lists.values()),
        "s, the slowest list",
        lists={path: round(seconds, 3) for path, seconds in lists.items()},
        first_of_backlog_s=round(first, 2),
        other_trigger_to_run_s=round(median(soon), 3),
        other_trigger_while_routed_s=round(early, 3),
        settings={"queued": queued, "slots": SLOTS},
    )


def _short(task: TaskPayload) -> Outcome:
    del task
    time.sleep(0.01)
    return Outcome()


async def _first_task(system: Rig, job: str, number: int) -> float:
    """From a trigger to the start of its task."""
    began = time.perf_counter()
    await trigger(system, f"ask_{job}", cursor=number)
    return await _until_ran(system, job, number, began)


async def _until_ran(system: Rig, job: str, count: int, began: float) -> float:
    while await system.pool.fetchval(RAN, job) < count:  # noqa: ASYNC110 - another process runs them
        await asyncio.sleep(0.005)
    return time.perf_counter() - began


async def _seconds(system: Rig, path: str) -> float:
    took = list[float]()
    for _ in range(TURNS):
        began = time.perf_counter()
        await ask(system, "GET", path, None)
        took.append(time.perf_counter() - began)
    return median(took)


if __name__ == "__main__":
    uvloop.run(main())
