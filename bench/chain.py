"""Two jobs in a chain: from A's completion to B's claim, one run at a time, nothing else running."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import uvloop

from bench.noop_worker import dataset_of, deploy, hand_to_workers, trigger, working
from bench.report import report
from bench.rig import rig
from trace_platform.contracts import Claimed

DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: a, operator: noop, inputs: [{from: {job: ask}}]}
  - {name: b, operator: noop, inputs: [{from: {job: a}}]}
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=50, help="runs")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "a", "b")
        dataset, version = await dataset_of(system, "a")
        completed: dict[int, float] = {}
        claimed: dict[int, float] = {}

        def events(task: Claimed) -> list[Any]:
            cursor = task.task.scope.cursor
            assert cursor is not None
            if task.task.job.name == "b":
                claimed[cursor] = time.perf_counter()
                return []
            # The clock starts when the completion is sent: a little before it is accepted.
            completed[cursor] = time.perf_counter()
            return [{"dataset_uuid": dataset, "dataset_version": version, "cursor": cursor}]

        async with working(system, events, 4) as worker:
            for run in range(size + 5):
                await trigger(system, "ask", cursor=run)
                await worker.wait_for(2 * (run + 1))
                await asyncio.sleep(0.01)
        times = sorted((claimed[run] - completed[run]) * 1000 for run in range(5, size + 5))  # after warming up
    p95 = times[int(len(times) * 0.95)]
    report("chain", statistics.median(times), "ms p50", p95_ms=round(p95, 2), settings={"runs": size})


if __name__ == "__main__":
    uvloop.run(main())
