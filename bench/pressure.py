"""Backpressure: routing while jobs are paused against routing while none is, and how fast what waited is released.

A thousand jobs; in every second turn two hundred of them are paused, so that their events are held. Then the pauses
end, and the held events become tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median

import uvloop

from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, rig
from bench.routing import JOBS, dag

PAUSED = 200
TURNS = 4
PAUSE = """
INSERT INTO pauses (org_id, job_id, priority, reason, paused_by)
SELECT j.org_id, j.id, 'normal', 'manual', u.id
  FROM jobs j JOIN users u ON u.org_id = j.org_id
 WHERE j.activation = 'reactive' ORDER BY j.id LIMIT $1
"""
STORE = """
WITH accepted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)
    SELECT s.org_id, 'manual', 'cursor', gen_random_uuid(), s.dataset_uuid, s.dataset_version, 'cursor:' || n, n
      FROM dag_version_datasets s
      JOIN job_inputs i ON i.dataset_uuid = s.dataset_uuid,
           generate_series($1::int, $2::int) n
     WHERE NOT $3 OR EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = i.job_id)
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted
)
SELECT count(*) FROM accepted
"""
UNROUTED = "SELECT count(*) FROM outbox WHERE kind = 'route_event' AND status = 'Pending'"
HELD = "SELECT count(*) FROM held_events"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="events that are held and released")
    size = parser.parse_args().size
    rates: dict[bool, list[float]] = {False: [], True: []}
    async with rig(more={"flow": {"pressure_seconds": 0.2, "release_queue_depth": 1_000_000}}) as system:
        await deploy(system, "bench", dag())
        # The tasks stay where they are: what is measured is the way from event to task.
        await system.pool.execute("UPDATE jobs SET runtime = 'ecs_platform'")
        cursor = 1
        for turn in range(TURNS):
            paused = turn % 2 == 1
            if paused:
                await system.pool.execute(PAUSE, PAUSED)
            rates[paused].append(await _route(system, cursor, cursor + 4, only_paused=False))
            cursor += 5
            await system.pool.execute("UPDATE pauses SET until = now() WHERE until IS NULL")
            await _wait_for_none(system, HELD)
        await system.pool.execute(PAUSE, PAUSED)
        await _route(system, cursor, cursor + size // PAUSED - 1, only_paused=True)
        held = await system.pool.fetchval(HELD)
        await system.pool.execute("UPDATE pauses SET until = now() WHERE until IS NULL")
        await system.pool.execute("NOTIFY trace_control, 'flow'")
        began = time.perf_counter()
        await _wait_for_none(system, HELD)
        seconds = time.perf_counter() - began
    report(
        "pressure",
        median(rates[True]) / median(rates[False]),
        "of routing without pauses",
        events_per_second=median(rates[True]),
        events_per_second_unpaused=median(rates[False]),
        released_per_second=held / seconds,
        settings={"jobs": JOBS, "paused": PAUSED, "held": held},
    )


async def _route(system: Rig, first: int, last: int, *, only_paused: bool) -> float:
    stored = await system.pool.fetchval(STORE, first, last, only_paused)
    began = time.perf_counter()
    await system.pool.execute("NOTIFY trace_control, 'outbox'")
    await _wait_for_none(system, UNROUTED)
    return float(stored) / (time.perf_counter() - began)


async def _wait_for_none(system: Rig, sql: str) -> None:
    while await system.pool.fetchval(sql):  # noqa: ASYNC110 - it is another process that works
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    uvloop.run(main())
