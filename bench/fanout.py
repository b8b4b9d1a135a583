"""One event becomes many partition tasks: from the trigger to the completion of the last.

With a worker that only claims and completes, and, in turns, with the product's own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Protocol

import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy, hand_to_workers, trigger, working
from bench.product_worker import product_working
from bench.report import report
from bench.rig import Rig, rig

DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 1}, inputs: [{from: {job: ask}}]}
  - {name: work, operator: noop, inputs: [{from: {job: cut}}]}
"""


TURNS = 3
WARM = 100
CONCURRENCY = 64


class Counts(Protocol):
    async def wait_for(self, done: int) -> None: ...


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=500, help="partitions")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "work")
        turns, own, cpu = [], [], []
        for turn in range(TURNS):
            async with working(system, lambda _: [], CONCURRENCY, 32) as worker:
                with cpu_seconds(system) as taken:
                    turns.append(await fanned_out(system, worker, size, first=2 * turn * 10**6))
                cpu.append(per_task_ms(taken, size + WARM))
            async with product_working(system, CONCURRENCY) as product:
                own.append(await fanned_out(system, product, size, first=(2 * turn + 1) * 10**6))
    seconds = statistics.median(turns)
    report(
        "fanout",
        seconds,
        "s",
        tasks_per_s=round(size / seconds),
        product_worker={"seconds": round(statistics.median(own), 3), "by_turn": [round(item, 3) for item in own]},
        by_turn=[round(item, 3) for item in turns],
        cpu_ms_per_task=cpu[0],
        settings={"partitions": size},
    )


async def fanned_out(system: Rig, worker: Counts, size: int, *, first: int) -> float:
    """Seconds; `first`: the first partition, so that each turn has its own."""
    await trigger(system, "ask", start=first + 10**5, end=first + 10**5 + WARM - 1)
    await worker.wait_for(WARM)
    began = time.perf_counter()
    await trigger(system, "ask", start=first, end=first + size - 1)
    await worker.wait_for(WARM + size)
    return time.perf_counter() - began


if __name__ == "__main__":
    uvloop.run(main())
