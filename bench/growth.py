"""Whether speed holds as history grows: `lifecycle` with few and with many finished tasks in the tables.

History is written as the system leaves it, set-based: tasks, attempts, inputs, events and kept entries; then vacuumed
and analyzed, as autovacuum would in the time that so many tasks take. Each size has a system of its own, and they are
measured in turns, so that what else the machine does hits all. One more system has the full history and all of it due
for removal, so that what retention deletes meanwhile is in the figure. The full size is `--size 5000000`.
"""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from statistics import median

import asyncpg
import uvloop

from bench.lifecycle import DAG, tasks_per_second
from bench.noop_worker import deploy, hand_to_workers
from bench.report import report
from bench.rig import Rig, rig

SMALL = 10_000
DUE = "retention due"
REMOVABLE = "SELECT count(*) FROM outbox WHERE status = 'Done' AND processed_at < now() - interval '300 days'"
CHUNK = 100_000
TABLES = ("tasks", "task_attempts", "task_inputs", "events", "outbox")

HISTORY = """
WITH numbers AS (
    SELECT 10000000000 + n AS cursor, uuidv7(age) AS event_id, uuidv7(age) AS task_id, gen_random_uuid() AS lease,
           now() + age AS at
      FROM generate_series($1::int, $2::int) n, LATERAL (SELECT n * interval '1 ms' - $3::interval AS age)
), source AS (
    SELECT j.id AS job_id, j.org_id, i.dataset_uuid, s.dataset_version
      FROM jobs j
      JOIN job_inputs i ON i.job_id = j.id AND i.live
      JOIN dag_version_datasets s ON s.dag_version_id = j.dag_version_id AND s.dataset_uuid = i.dataset_uuid
     WHERE j.name = 'work'
), accepted AS (
    INSERT INTO events (id, org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value,
                        created_at, routed_at)
    SELECT event_id, org_id, 'manual', 'cursor', event_id, dataset_uuid, dataset_version,
           'cursor:' || cursor, cursor, at, at
      FROM numbers, source
), entries AS (
    INSERT INTO outbox (org_id, kind, status, attempts, payload, available_at, created_at, processed_at)
    SELECT org_id, kind::outbox_kind, 'Done', 1, payload, at, at, at
      FROM numbers, source, LATERAL (VALUES
          ('route_event', jsonb_build_object('event_id', event_id)),
          ('enqueue_task', jsonb_build_object('task_id', task_id, 'runtime', 'ecs_platform'))) AS p (kind, payload)
), made AS (
    INSERT INTO tasks (id, org_id, job_id, status, dedupe_key, event_id, input_versions, created_at, queued_at,
                       woken_at, lease_token, worker_id, started_at, last_heartbeat, completed_at, outputs,
                       completion_hash, completion_answer)
    SELECT task_id, org_id, job_id, 'Completed',
           concat_ws(':', 'cursor', dataset_uuid, dataset_version, cursor), event_id,
           jsonb_build_object('dataset_uuid', dataset_uuid, 'dataset_version', dataset_version, 'cursor', cursor),
           at, at, at, lease, 'bench', at, at, at, '[]', sha256(lease::text::bytea), '{"status": "Completed"}'
      FROM numbers, source
), history AS (
    INSERT INTO task_attempts (task_id, attempt, org_id, lease_token, worker_id, started_at)
    SELECT task_id, 1, org_id, lease, 'bench', at FROM numbers, source
)
INSERT INTO task_inputs (task_id, attempt, org_id, input_dataset_uuid, input_dataset_version)
SELECT task_id, 1, org_id, dataset_uuid, dataset_version FROM numbers, source
"""
ENDED = """
UPDATE task_attempts SET ended_at = started_at, outcome = 'Completed'
 WHERE ended_at IS NULL AND started_at > now() - $2::interval + $1::interval - interval '1 minute'
"""
"""An attempt is a row that grows when it ends, within its page. Written whole, it would leave a gap in every page, and
the next ones would be put there, all over the table: that never happens."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=300_000, help="finished tasks at the end; the full one: 5000000")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks in each measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each size")
    options = parser.parse_args()
    async with AsyncExitStack() as stack:
        systems = {str(finished): await filled(stack, finished) for finished in steps(options.size)}
        systems[DUE] = await filled(stack, options.size, age=timedelta(days=400))
        kept = await systems[DUE].pool.fetchval(REMOVABLE)
        turns: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in systems}
        for turn in range(1, options.turns + 1):
            for name, system in systems.items():
                turns[name].append(await tasks_per_second(system, options.tasks, 48, 16, first=turn * 10**8))
        measured = {name: figures(system, turns[name]) for name, system in systems.items()}
        removed = kept - await systems[DUE].pool.fetchval(REMOVABLE)
    small, large, due = measured[str(SMALL)], measured[str(options.size)], measured[DUE]
    report(
        "growth",
        large["tasks_per_s"] / small["tasks_per_s"],
        "ratio of tasks/s, largest to smallest",
        ratio_with_retention_due=round(due["tasks_per_s"] / small["tasks_per_s"], 3),
        outbox_rows_removed_meanwhile=removed,
        ratio_of_cpu_per_task={name: round(small[name] / large[name], 3) for name in small if name.endswith("_ms")},
        measured=measured,
        settings={"finished": options.size, "tasks": options.tasks, "turns": options.turns},
    )


async def filled(stack: AsyncExitStack, finished: int, age: timedelta = timedelta(days=1)) -> Rig:
    system = await stack.enter_async_context(rig())
    await deploy(system, "bench", DAG)
    await hand_to_workers(system, "work")
    await fill(system, finished, age)
    print(f"{finished} finished tasks written, {age.days} days old")
    return system


def figures(system: Rig, turns: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """The median of each over the turns, and what the Dispatcher holds in memory."""
    cpu = {f"{name}_ms": round(median(cpu[name] for _, cpu in turns), 3) for name in turns[0][1]}
    return {"tasks_per_s": round(median(rate for rate, _ in turns)), **cpu, "dispatcher_rss_mb": rss(system)}


def steps(size: int) -> list[int]:
    return [finished for finished in (SMALL, 1_000_000) if finished < size] + [size]


async def fill(system: Rig, want: int, age: timedelta) -> None:
    connection = await asyncpg.connect(system.state)
    try:
        # What is written refers to nothing that is not there; to prove it row by row would take the longest of all.
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("SET synchronous_commit = off")
        # Orphan files were looked for recently: else the loop would catch up while rows are inserted and measured.
        await connection.execute(
            "INSERT INTO orphan_file_marks (swept_until) VALUES (now() - interval '2 h')"
            " ON CONFLICT (only_one) DO UPDATE SET swept_until = EXCLUDED.swept_until"
        )
        for first in range(1, want + 1, CHUNK):
            await connection.execute(HISTORY, first, min(first + CHUNK - 1, want), age, timeout=600)
            await connection.execute(ENDED, timedelta(milliseconds=first), age, timeout=600)
        for table in TABLES:
            await connection.execute(f"VACUUM (ANALYZE) {table}", timeout=600)
    finally:
        await connection.close()


def rss(system: Rig) -> int:
    status = Path(f"/proc/{system.dispatcher.pid}/status").read_text()
    return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024)


if __name__ == "__main__":
    uvloop.run(main())
