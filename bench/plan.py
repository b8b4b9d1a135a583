"""A plan: how long `POST /v1/plans` takes for an edit that rebuilds a DAG of 300 jobs with many current partitions.

The first job is edited, so that every dataset after it gets a new generation: a plan has to find out no more. The full
size is `--size 1000000`.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import uvloop

from bench.noop_worker import ask, deploy
from bench.report import report
from bench.rig import rig

JOBS = 300
PLANS = 9
PARTITIONS = """
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location,
                                row_count, bytes)
SELECT s.dataset_version, block_range_key(int8range(n, n + 1)), n, s.org_id, s.dataset_uuid, int8range(n, n + 1), '',
       10, 1000
  FROM dag_version_datasets s
 CROSS JOIN generate_series(1, $1::bigint / (SELECT count(*) FROM dag_version_datasets)) n
"""


def dag(edit: str = "") -> str:
    """Ten chains of queries after one that reads files."""
    lines = ["name: bench", "defaults: {runtime: ecs_platform}", "jobs:"]
    lines += ["  - {name: load, operator: noop, runtime: dispatcher, source: {kind: manual}}"]
    lines += ["  - name: j0", "    operator: read_files", "    inputs: [{from: {job: load}}]"]
    lines += [f"    config: {{path: rows{edit}, format: csv, columns: [a bigint, b bigint]}}"]
    for n in range(1, JOBS - 1):
        above = max(n - 10, 0)
        lines += [f"  - name: j{n}", "    operator: sql", f"    inputs: [{{from: {{job: j{above}}}}}]"]
        lines += [f'    config: {{query: "SELECT a, b + 1 AS b FROM j{above}"}}']  # noqa: S608 - YAML
    return "\n".join([*lines, "publish:", *(f"  d{n}: {{job: j{n}}}" for n in range(JOBS - 1))])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="current partitions, of all datasets together")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", dag())
        async with system.pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")  # the commits are not there
            await connection.execute(PARTITIONS, size)
        await system.pool.execute("VACUUM ANALYZE partition_versions")
        seconds = []
        for _ in range(PLANS):
            began = time.perf_counter()
            plan = await ask(system, "POST", "/plans", {"dags": [dag(edit="_2")]})
            seconds.append(time.perf_counter() - began)
        built = sum(row["action"] == "build" for row in plan["datasets"])
        assert built == JOBS - 1, f"{built} datasets are built"
    report("plan", median(seconds) * 1000, "ms", slowest_ms=max(seconds) * 1000, settings={"size": size, "jobs": JOBS})


if __name__ == "__main__":
    uvloop.run(main())
