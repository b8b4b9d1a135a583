"""Tasks that do not run, because another task wrote what they would write: how long one takes.

A version of a DAG is activated whose job in the middle was edited, with partitions that have the content that they had
before. The job behind it has a task for each, and a completed one of the former version that read the same. What is
measured is the time from the look at the first partition to the commit of the last task. Then the same again with
partitions of another content: what the look costs for tasks that have to run.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import ask, deploy
from bench.report import report
from bench.rig import Rig, rig

DAG = """
name: bench
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: load, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: middle, operator: sql, config: {{query: 'SELECT n FROM load WHERE n > {0}'}}, inputs: [{{from: {{job: load}}, name: load}}]}}
  - {{name: work, operator: sql, config: {{query: 'SELECT n FROM middle'}}, inputs: [{{from: {{job: middle}}, name: middle}}]}}
"""  # noqa: E501
PARTITIONS = """
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location,
                                files, row_count, bytes, content_hash)
SELECT s.dataset_version, block_range_key(int8range(n, n + 1)), n, s.org_id, s.dataset_uuid, int8range(n, n + 1),
       format('s3://trace/datasets/%s/%s/attempts/%s/1/', s.dataset_uuid, s.dataset_version, n),
       jsonb_build_array(jsonb_build_object('name', 'rows.parquet', 'rows', 1, 'bytes', 1, 'sha256', 'x')), 1, 1,
       sha256(convert_to($4 || n, 'UTF8'))
  FROM generate_series(1, $1::bigint) n
 CROSS JOIN (SELECT s.* FROM dag_version_datasets s JOIN datasets d ON d.id = s.dataset_uuid
              WHERE d.producer_job_name = $2 AND s.dag_version_id = $3) s
"""
HEADS = """
INSERT INTO dataset_heads (dataset_uuid, org_id, last_commit)
SELECT id, org_id, $1 FROM datasets WHERE producer_job_name IN ('middle', 'work')
"""
SCHEMAS = "UPDATE dataset_versions SET schema_hash = 'x', columns = '[]'"
ORIGINALS = """
WITH done AS (
    INSERT INTO tasks (org_id, job_id, status, dedupe_key, partitions, input_versions, woken_at, lease_token, worker_id,
                       started_at, completed_at)
    SELECT p.org_id, j.id, 'Completed', p.partition_key, ARRAY[p.partition_key],
           trigger_of(p.dataset_uuid, p.dataset_version, NULL, p.partition_key, p.block_range, p.valid_from),
           now(), gen_random_uuid(), 'bench', now(), now()
      FROM partition_versions p, jobs j
     WHERE j.dag_version_id = $1 AND j.name = 'work'
       AND p.dataset_uuid = (SELECT id FROM datasets WHERE producer_job_name = 'middle')
    RETURNING *
), commits AS (
    INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt)
    SELECT p.dataset_uuid, p.valid_from, p.org_id, p.dataset_version, t.id, 1
      FROM done t
      JOIN partition_versions p ON p.partition_key = t.dedupe_key
       AND p.dataset_uuid = (SELECT id FROM datasets WHERE producer_job_name = 'work')
), attempts AS (
    INSERT INTO task_attempts (task_id, attempt, org_id, lease_token, worker_id, started_at, ended_at, outcome)
    SELECT id, 1, org_id, lease_token, worker_id, started_at, now(), 'Completed' FROM done
)
INSERT INTO task_inputs (task_id, attempt, org_id, input_dataset_uuid, input_dataset_version, input_commit)
SELECT t.id, 1, t.org_id, (t.input_versions ->> 'dataset_uuid')::uuid,
       (t.input_versions ->> 'dataset_version')::uuid, $2
  FROM done t
"""
COMMITS = """
INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, scope)
SELECT p.dataset_uuid, p.valid_from, p.org_id, p.dataset_version, (SELECT t.id FROM tasks t LIMIT 1), 1, p.partition_key
  FROM partition_versions p
 WHERE p.dataset_uuid = (SELECT id FROM datasets WHERE producer_job_name = 'middle')
"""
KEYS = """
UPDATE tasks SET memo_key = memo_key(id, '{"sql": 1, "evm_decode": 1}') WHERE status = 'Completed'
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=5_000, help="tasks")
    size = parser.parse_args().size
    async with rig(more={"loops": {"catch_up_queued": 10**9}}) as system:
        hit, cpu = await _pass(system, size, "same ")
        memoized = await system.pool.fetchval("SELECT count(*) FROM tasks WHERE memoized_from IS NOT NULL")
        assert memoized == size, f"{memoized} of {size} tasks were completed"
    async with rig(more={"loops": {"catch_up_queued": 10**9}}) as system:
        miss, _ = await _pass(system, size, "other ")
        assert not await system.pool.fetchval("SELECT count(*) FROM tasks WHERE memoized_from IS NOT NULL")
    report(
        "memo",
        hit / size * 1000,
        "ms/task",
        hits_per_second=round(size / hit),
        cpu_ms_per_task=cpu,
        ms_per_task_that_must_run=round(miss / size * 1000, 3),
        settings={"size": size},
    )


async def _pass(system: Rig, size: int, content: str) -> tuple[float, dict[str, float]]:
    first = await ask(system, "POST", "/dags/bench/versions", {"yaml": DAG.format(1)})
    second = await ask(system, "POST", "/dags/bench/versions", {"yaml": DAG.format(2)})
    former, version = first["dag_version_id"], second["dag_version_id"]
    async with system.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")  # no checks
        for job in ("middle", "work"):
            await connection.execute(PARTITIONS, size, job, former, "same ")
        await connection.execute(HEADS, size)
        await connection.execute(SCHEMAS)
        await connection.execute(ORIGINALS, former, size)
        await connection.execute(COMMITS)
        await connection.execute(PARTITIONS, size, "middle", version, content)
    await system.pool.execute("ANALYZE")
    await system.pool.execute(KEYS)
    began = time.perf_counter()
    with cpu_seconds(system) as taken:
        await deploy(system, "bench", DAG.format(2))
        left = "SELECT count(*) FROM catch_ups WHERE walked_at IS NULL"
        while await system.pool.fetchval(left):  # noqa: ASYNC110 - it is another process that works
            await asyncio.sleep(0.05)
    return time.perf_counter() - began, per_task_ms(taken, size)


if __name__ == "__main__":
    uvloop.run(main())
