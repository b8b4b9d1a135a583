"""A cutover: how long the transaction takes that swaps 300 datasets, there and back, while 50 readers resolve names.

Each reader resolves three names of the group in one call, as a query does, about once a second; every answer must be of
one group. `promote_ms` is a whole call that promotes a release or rolls it back: it also reads the YAML of 300 jobs,
before the transaction, in a Dispatcher that answers the readers meanwhile. `cpu_ms_of_a_swap` stays comparable when
others use the machine too; it includes what the readers take of this process. Then how fast events become tasks while a
release is being built beside, against alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec
import uvloop

from bench.noop_worker import ask, deploy
from bench.plan import JOBS, dag
from bench.report import report
from bench.rig import Rig, rig
from tests.support.identity.service_tokens import as_gateway, as_service
from tracelake.dispatcher.dags.switch import parse_versions, switch
from tracelake.dispatcher.runtimes.known import runtime_specs
from tracelake.domain.ids import OrgId
from tracelake.settings import RUNTIMES
from tracelake.store.db import open_pool

READERS = 50
PAUSE_SECONDS = 1.0
NAMES = ("d0", f"d{JOBS // 2}", f"d{JOBS - 2}")
TURNS = 3
EVENTS_OF_EACH = 20
STORE = """
WITH accepted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)
    SELECT s.org_id, 'manual', 'cursor', gen_random_uuid(), s.dataset_uuid, s.dataset_version, 'cursor:' || n, n
      FROM dag_current_versions c
      JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id
     CROSS JOIN generate_series($1::int, $2::int) n
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted
)
SELECT count(*) FROM accepted
"""
LEFT = "SELECT count(*) FROM outbox WHERE kind = 'route_event' AND status = 'Pending'"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10, help="promotions, each followed by a rollback")
    size = parser.parse_args().size
    async with rig() as system:
        await deploy(system, "bench", dag())
        calls: list[float] = []
        async with reading(system) as seen:
            for _ in range(size):
                release = await _started(system)
                calls.append(await _timed(system, f"/releases/{release}/promote", {"force": True}))
                calls.append(await _timed(system, f"/releases/{release}/rollback", {}))
            swaps, cpu = await _swaps(system, size)
        assert len(set(seen)) == 2, f"{len(set(seen))} groups were seen, not 2"
        ratio = await _beside(system)
    report(
        "cutover",
        median(swaps) * 1000,
        "ms",
        slowest_ms=max(swaps) * 1000,
        cpu_ms_of_a_swap=cpu,
        promote_ms=median(calls) * 1000,
        reads=len(seen),
        routing_beside_a_build=ratio,
        settings={"switches": len(swaps), "datasets": JOBS, "readers": READERS},
    )


@asynccontextmanager
async def reading(system: Rig) -> AsyncIterator[list[tuple[str, ...]]]:
    """The generations that each read found."""
    seen: list[tuple[str, ...]] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=system.tls, limit=READERS)) as http:
        readers = [asyncio.create_task(_read(system, http, seen)) for _ in range(READERS)]
        await asyncio.sleep(1)
        try:
            yield seen
        finally:
            for reader in readers:
                reader.cancel()
            ended = await asyncio.gather(*readers, return_exceptions=True)
    wrong = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    assert not wrong, wrong[0]


async def _read(system: Rig, http: aiohttp.ClientSession, seen: list[tuple[str, ...]]) -> None:
    url = f"{system.internal_api}/internal/query/relations"
    proven = as_gateway("local|admin", "query")
    headers = {**proven, **as_service("query"), "content-type": "application/json"}
    body = msgspec.json.encode({"tables": [{"name": name} for name in NAMES]})
    while True:
        async with http.post(url, data=body, headers=headers) as got:
            answer: dict[str, Any] = msgspec.json.decode(await got.read())
            assert got.status == 200, answer
        found = {relation["name"]: relation["dataset_version"] for relation in answer["relations"]}
        seen.append(tuple(found[name] for name in NAMES))
        await asyncio.sleep(PAUSE_SECONDS)


async def _swaps(system: Rig, size: int) -> tuple[list[float], dict[str, float]]:
    """The transaction alone, by the function that every activation, promotion and rollback uses.

    And the processor time that it takes here and in its Postgres connection, in milliseconds: the median of each.
    """
    rows = await system.pool.fetch("SELECT id FROM dag_versions ORDER BY created_at DESC")
    seconds: list[float] = []
    here: list[float] = []
    postgres: list[float] = []
    specs = runtime_specs(RUNTIMES)
    async with open_pool(system.state, name="bench", max_size=1) as pool:
        for version in [row["id"] for row in rows] * size:
            parsed = await parse_versions(pool, specs, system.org_id, {"bench": version})
            async with pool.acquire() as connection:
                backend = await connection.fetchval("SELECT pg_backend_pid()")
                before = _thread_seconds(os.getpid()), _thread_seconds(backend)
                began = time.perf_counter()
                async with connection.transaction():
                    assert await switch(connection, OrgId(system.org_id), parsed)
                seconds.append(time.perf_counter() - began)
                here.append(_thread_seconds(os.getpid()) - before[0])
                postgres.append(_thread_seconds(backend) - before[1])
    return seconds, {"here": round(median(here) * 1000, 1), "postgres": round(median(postgres) * 1000, 1)}


def _thread_seconds(pid: int) -> float:
    """What the first thread of a process has computed, to the microsecond: clock ticks are as long as a swap."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def _started(system: Rig) -> str:
    answer = await ask(system, "POST", "/releases", {"dags": [dag(edit="_2")]})
    return str(answer["release"]["id"])


async def _timed(system: Rig, path: str, body: dict[str, bool]) -> float:
    began = time.perf_counter()
    await ask(system, "POST", path, body or None)
    return time.perf_counter() - began


async def _beside(system: Rig) -> float:
    """The rate of routing while a release is built, as a share of the rate alone; in turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * TURNS):
        builds = turn % 2 == 1
        release = await _started(system) if builds else None
        rates[builds].append(await _rate(system, turn))
        if release is not None:
            await ask(system, "POST", f"/releases/{release}/abandon", None)
    return median(rates[True]) / median(rates[False])


async def _rate(system: Rig, turn: int) -> float:
    stored = await system.pool.fetchval(STORE, 1 + turn * EVENTS_OF_EACH, (turn + 1) * EVENTS_OF_EACH)
    began, first = time.perf_counter(), stored
    while await system.pool.fetchval(LEFT) == stored:
        await asyncio.sleep(0.001)
        began = time.perf_counter()
    first = await system.pool.fetchval(LEFT)
    while await system.pool.fetchval(LEFT):  # noqa: ASYNC110 - it is another process that works
        await asyncio.sleep(0.01)
    return float(first / (time.perf_counter() - began))


if __name__ == "__main__":
    uvloop.run(main())
