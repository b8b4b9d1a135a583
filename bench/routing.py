"""Events to tasks: how many a second one Dispatcher routes, against a thousand jobs; each event has one reader."""

from __future__ import annotations

import argparse
import asyncio
import time

import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy
from bench.report import report
from bench.rig import rig

JOBS = 1000


def dag() -> str:
    lines = ["name: bench", "defaults: {runtime: dispatcher}", "jobs:"]
    lines += ["  - {name: j0, operator: noop, source: {kind: manual}}"]
    lines += [f"  - {{name: j{n}, operator: noop, inputs: [{{from: {{job: j{n - 1}}}}}]}}" for n in range(1, JOBS)]
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10_000, help="events")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", dag())
        # The tasks stay where they are: what is measured is the way from event to task and wake-up.
        await system.pool.execute("UPDATE jobs SET runtime = 'ecs_platform'")
        each = size // (JOBS - 1)
        stored = await system.pool.fetchval(
            "WITH accepted AS ("
            " INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope,"
            " cursor_value)"
            " SELECT s.org_id, 'manual', 'cursor', gen_random_uuid(), s.dataset_uuid, s.dataset_version,"
            " 'cursor:' || n, n"
            " FROM dag_version_datasets s JOIN job_inputs i ON i.dataset_uuid = s.dataset_uuid,"
            " generate_series(1, $1::int) n"
            " RETURNING id, org_id, dataset_uuid), entries AS ("
            " INSERT INTO outbox (org_id, kind, payload, turn_of)"
            " SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted)"
            " SELECT count(*) FROM accepted",
            each,
        )
        left = "SELECT count(*) FROM outbox WHERE kind = 'route_event' AND status = 'Pending'"
        while await system.pool.fetchval(left) == stored:  # noqa: ASYNC110 - the Dispatcher finds them at its next beat
            await asyncio.sleep(0.001)
        with cpu_seconds(system) as taken:
            began, first = time.perf_counter(), await system.pool.fetchval(left)
            while await system.pool.fetchval(left):  # noqa: ASYNC110 - it is another process that works
                await asyncio.sleep(0.02)
            rate = first / (time.perf_counter() - began)
        made = await system.pool.fetchval("SELECT count(*) FROM tasks")
    cpu = per_task_ms(taken, first)
    report("routing", rate, "events/s", tasks=made, cpu_ms_per_event=cpu, settings={"events": stored, "jobs": JOBS})


if __name__ == "__main__":
    uvloop.run(main())
