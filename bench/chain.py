"""Two jobs in a chain: from A's completion to B's claim, one run at a time, nothing else running.

The clock starts when A's completion is accepted, which is when Postgres commits it, and stops when B's worker has its
claim in hand. `sent_p50_ms` starts earlier, when A's worker sends its completion.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import uvloop

from bench.noop_worker import dataset_of, deploy, hand_to_workers, trigger, working
from bench.report import report
from bench.rig import Rig, rig
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
    async with rig(settings={"track_commit_timestamp": "on"}) as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "a", "b")
        dataset, version = await dataset_of(system, "a")
        sent: dict[int, float] = {}
        claimed: dict[int, float] = {}

        def events(task: Claimed) -> list[Any]:
            cursor = task.task.scope.cursor
            assert cursor is not None
            if task.task.job.name == "b":
                claimed[cursor] = time.time()
                return []
            sent[cursor] = time.time()
            return [{"dataset_uuid": dataset, "dataset_version": version, "cursor": cursor}]

        async with working(system, events, 4) as worker:
            for run in range(size + 5):
                await trigger(system, "ask", cursor=run)
                await worker.wait_for(2 * (run + 1))
                await asyncio.sleep(0.01)
        accepted = await commit_times(system)
    runs = range(5, size + 5)  # after warming up
    times = sorted((claimed[run] - accepted[run]) * 1000 for run in runs)
    since_sent = statistics.median((claimed[run] - sent[run]) * 1000 for run in runs)
    p95 = times[int(len(times) * 0.95)]
    report(
        "chain",
        statistics.median(times),
        "ms p50",
        p95_ms=round(p95, 2),
        sent_p50_ms=round(since_sent, 2),
        settings={"runs": size},
    )


async def commit_times(system: Rig) -> dict[int, float]:
    """When each completion of A was committed, by its cursor."""
    rows = await system.pool.fetch(
        "SELECT (t.input_versions ->> 'cursor')::int AS run,"
        " extract(epoch FROM pg_xact_commit_timestamp(t.xmin))::float8 AS at"
        " FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'a' AND t.status = 'Completed'"
    )
    return {row["run"]: row["at"] for row in rows}


if __name__ == "__main__":
    uvloop.run(main())
