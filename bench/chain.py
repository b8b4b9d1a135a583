"""Two jobs in a chain: from A's completion to B's claim, one run at a time, nothing else running.

The clock starts when A's completion is accepted, which is when Postgres commits it, and stops when B's worker has its
claim received. `sent` starts earlier, when A's worker sends its completion. Both with a worker that only claims and
completes, and with the product's own (`product_worker`), where B's claim is received when its operator begins.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Iterable
from typing import Any, Protocol

import uvloop

from bench.noop_worker import dataset_of, deploy, hand_to_workers, trigger, working
from bench.product_worker import product_working
from bench.report import report
from bench.rig import Rig, rig
from tracelake.operators.api.outcome import Outcome
from tracelake.wire.task.lifecycle import Claimed, TaskPayload
from tracelake.wire.task.outputs import EventBody

WARM = 5
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

        def note(task: TaskPayload) -> int | None:
            """The cursor of the event that its completion carries, if it is A's."""
            cursor = task.scope.cursor
            assert cursor is not None
            if task.job.name == "b":
                claimed[cursor] = time.time()
                return None
            sent[cursor] = time.time()
            return cursor

        def events(task: Claimed) -> list[Any]:
            cursor = note(task.task)
            if cursor is None:
                return []
            return [{"dataset_uuid": dataset, "dataset_version": version, "cursor": cursor}]

        def operator(task: TaskPayload) -> Outcome:
            cursor = note(task)
            if cursor is None:
                return Outcome()
            return Outcome(events=(EventBody(dataset_uuid=dataset, dataset_version=version, cursor=cursor),))

        async with working(system, events, 4) as worker:
            await one_by_one(system, worker, range(size + WARM))
        async with product_working(system, 4, operator) as product:
            await one_by_one(system, product, range(10**6, 10**6 + size + WARM))
        accepted = await commit_times(system)
    bare, own = (
        {
            "accepted": percentiles(claimed[run] - accepted[run] for run in runs),
            "sent": percentiles(claimed[run] - sent[run] for run in runs),
        }
        for runs in (range(WARM, size + WARM), range(10**6 + WARM, 10**6 + size + WARM))
    )
    report(
        "chain",
        bare["accepted"]["p50_ms"],
        "ms p50",
        **bare,
        product_worker=own,
        settings={"runs": size},
    )


class Counts(Protocol):
    async def wait_for(self, done: int) -> None: ...


async def one_by_one(system: Rig, worker: Counts, runs: range) -> None:
    for number, run in enumerate(runs, 1):
        await trigger(system, "ask", cursor=run)
        await worker.wait_for(2 * number)
        await asyncio.sleep(0.01)


def percentiles(seconds: Iterable[float]) -> dict[str, float]:
    times = sorted(1000 * second for second in seconds)
    return {"p50_ms": round(statistics.median(times), 2), "p95_ms": round(times[int(len(times) * 0.95)], 2)}


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
