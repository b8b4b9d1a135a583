"""Tasks from event to completion while a release is built beside, against alone: `lifecycle` in turns.

The release has a job with many partitions to build. Its tasks are `bulk` work for the same worker, which does nothing
but claim and complete. A build takes from serving work what it costs the Dispatcher, Postgres and the queue, and the
slots that its priority gives it.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import uvloop

from bench.lifecycle import DAG
from bench.noop_worker import ask, deploy, emit, hand_to_workers, trigger, working
from bench.report import report
from bench.rig import Rig, rig
from tracelake.wire.task.lifecycle import Claimed

CONCURRENCY = 64
CLAIMS = 32
BUILT = """
name: other
defaults: {{runtime: dispatcher}}
jobs:
  - {{name: load, operator: noop, source: {{kind: manual}}}}
  - {{name: built, operator: noop, inputs: [{{from: {{job: load}}}}], execution_strategy: {0}}}
"""
EDITS = ("PerUpdate", "PerPartition")
PARTITIONS = """
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location)
SELECT s.dataset_version, block_range_key(int8range(n, n + 1)), n, s.org_id, s.dataset_uuid, int8range(n, n + 1), ''
  FROM generate_series(1, $1::bigint) n
 CROSS JOIN (SELECT s.* FROM dag_version_datasets s JOIN datasets d ON d.id = s.dataset_uuid
              WHERE d.producer_job_name = 'load') s
"""
DONE = """
SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'built' AND t.status = 'Completed'
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2000, help="tasks in each measurement")
    parser.add_argument("--partitions", type=int, default=50_000, help="what the release has to build")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each kind")
    options = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with rig() as system:
        await deploy(system, "bench", DAG)
        await deploy(system, "other", BUILT.format(EDITS[0]))
        await hand_to_workers(system, "work")
        async with system.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")  # the commits are not there
            await connection.execute(PARTITIONS, options.partitions)
        await system.pool.execute("ANALYZE partition_versions")
        for turn in range(2 * options.turns):
            builds = turn % 2 == 1
            release = await _started(system) if builds else None
            rates[builds].append(await _rate(system, options.size, first=(turn + 1) * 10**7))
            if release is not None:
                assert await _is_building(system, release), "the release was built before the measurement ended"
                await ask(system, "POST", f"/releases/{release}/abandon", None)
        built = await system.pool.fetchval(DONE)
    alone, beside = median(rates[False]), median(rates[True])
    report(
        "beside_build",
        beside / alone,
        "ratio of tasks/s, beside a build to alone",
        tasks_per_s={"alone": round(alone), "beside": round(beside)},
        by_turn={"alone": [round(rate) for rate in rates[False]], "beside": [round(rate) for rate in rates[True]]},
        built_meanwhile=built,
        settings={"tasks": options.size, "partitions": options.partitions, "turns": options.turns},
    )


async def _started(system: Rig) -> str:
    answer = await ask(system, "POST", "/releases", {"dags": [BUILT.format(EDITS[1])]})
    await hand_to_workers(system, "built")
    return str(answer["release"]["id"])


async def _is_building(system: Rig, release: str) -> bool:
    found = await ask(system, "GET", f"/releases/{release}", None)
    return bool(found["release"]["state"] == "Building")


async def _rate(system: Rig, size: int, *, first: int) -> float:
    """Of tasks of `work`: those of the release are not counted."""
    done = 0

    def count(claimed: Claimed) -> list[object]:
        nonlocal done
        done += claimed.task.job.name == "work"
        return []

    async with working(system, count, CONCURRENCY, CLAIMS) as worker:

        async def until(tasks: int) -> None:
            while done < tasks:
                await worker.wait_for(worker.done + 1)

        await emit(system, "ask", 100, first=first)
        await trigger(system, "ask", cursor=first + 100)
        await until(101)
        await emit(system, "ask", size - 1, first=first + 1000)
        began = time.perf_counter()
        await trigger(system, "ask", cursor=first + 101)
        await until(101 + size)
        return size / (time.perf_counter() - began)


if __name__ == "__main__":
    uvloop.run(main())
