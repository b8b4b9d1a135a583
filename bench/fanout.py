"""One event becomes many partition tasks: from the trigger to the completion of the last."""

from __future__ import annotations

import argparse
import time

import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy, hand_to_workers, trigger, working
from bench.report import report
from bench.rig import rig

DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: cut, operator: range_splitter, config: {chunk: 1}, inputs: [{from: {job: ask}}]}
  - {name: work, operator: noop, inputs: [{from: {job: cut}}]}
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=500, help="partitions")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "work")
        async with working(system, lambda _: [], 64, 32) as worker:
            await trigger(system, "ask", start=10**6, end=10**6 + 99)
            await worker.wait_for(100)
            with cpu_seconds(system) as taken:
                began = time.perf_counter()
                await trigger(system, "ask", start=0, end=size - 1)
                await worker.wait_for(100 + size)
                seconds = time.perf_counter() - began
    cpu = per_task_ms(taken, size)
    report(
        "fanout",
        seconds,
        "s",
        tasks_per_s=round(size / seconds),
        cpu_ms_per_task=cpu,
        settings={"partitions": size},
    )


if __name__ == "__main__":
    uvloop.run(main())
