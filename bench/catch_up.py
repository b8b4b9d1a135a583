"""Missing partitions to tasks: how many a second one Dispatcher creates for a job that has processed nothing.

The job has a limit of concurrent tasks, as work that catches up should: the tasks wait for a slot, and their wake-ups
are not published all at once. Then a second pass over the same partitions, all of which have a task: what it costs to
find that nothing is missing. The full size is `--size 1000000`.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import uvloop

from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, rig

DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: load, operator: noop, source: {kind: manual}}
  - {name: work, operator: noop, inputs: [{from: {job: load}}], scaling: {max_concurrency: 100}}
"""
PARTITIONS = """
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location)
SELECT s.dataset_version, block_range_key(int8range(n, n + 1)), n, s.org_id, s.dataset_uuid, int8range(n, n + 1), ''
  FROM generate_series(1, $1::bigint) n
 CROSS JOIN (SELECT s.* FROM dag_version_datasets s JOIN datasets d ON d.id = s.dataset_uuid
              WHERE d.producer_job_name = 'load') s
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="partitions")
    size = parser.parse_args().size
    async with rig(more={"loops": {"catch_up_queued": 10**9}}) as system:
        await deploy(system, "bench", DAG)
        await _walked(system)
        # The tasks stay where they are: a worker's runtime, without a worker.
        await system.pool.execute("UPDATE jobs SET runtime = 'ecs_platform'")
        async with system.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")  # the commits are not there
            await connection.execute(PARTITIONS, size)
        await system.pool.execute("ANALYZE partition_versions")
        seconds = await _pass(system)
        made = await system.pool.fetchval("SELECT count(*) FROM tasks")
        assert made == size, f"{made} tasks for {size} partitions"
        again = await _pass(system)
    report(
        "catch_up",
        size / seconds,
        "tasks/s",
        partitions_per_second_if_none_is_missing=size / again,
        settings={"size": size},
    )


async def _pass(system: Rig) -> float:
    await system.pool.execute("UPDATE catch_ups SET due_at = now(), walked_at = NULL, requested_at = '-infinity'")
    await system.pool.execute("NOTIFY trace_control, 'catch_up'")
    began = time.perf_counter()
    await _walked(system)
    return time.perf_counter() - began


async def _walked(system: Rig) -> None:
    left = "SELECT count(*) FROM catch_ups WHERE walked_at IS NULL"
    while await system.pool.fetchval(left):  # noqa: ASYNC110 - it is another process that works
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    uvloop.run(main())
