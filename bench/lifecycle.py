"""No-op tasks from event to completion: routed, woken, claimed and completed over HTTP with TLS and tokens.

One Dispatcher, one process of workers, one Postgres, all on this machine. The share is of what pgbench gets in the same
run for a bare claim and completion of the same rows: no events, no HTTP, no tokens. The headline is with a worker that
does nothing but claim and complete; `product_worker` is the same with the product's own wrapper and clients, in turns.

With `--backend sqs`: the same with wake-ups on SQS, which is moto here, and as a share of those on Postgres. Its floor
is moto, so it says nothing about the speed of AWS.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy, emit, hand_to_workers, trigger, working
from bench.product_worker import product_working
from bench.queue import keys_of_aws
from bench.report import report
from bench.rig import Rig, rig
from tests.support.aws.moto import running_moto
from tracelake.lite.postgres import binaries

TURNS = 3
DAG = """
name: bench
defaults: {runtime: dispatcher}
jobs:
  - {name: ask, operator: noop, source: {kind: manual}}
  - {name: work, operator: noop, inputs: [{from: {job: ask}}]}
"""

BARE = """
INSERT INTO bare (id) VALUES (gen_random_uuid()) RETURNING id \\gset
UPDATE bare SET status = 'Running', lease = gen_random_uuid(), expires = now() + interval '2 min'
 WHERE id = ':id' AND status = 'Queued';
UPDATE bare SET status = 'Completed', expires = NULL, done = now() WHERE id = ':id' AND status = 'Running';
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2000, help="tasks")
    parser.add_argument("--concurrency", type=int, default=64, help="tasks in progress at once")
    parser.add_argument("--claims", type=int, default=32, help="claims in one call, at most")
    parser.add_argument("--backend", choices=["pg", "sqs"], default="pg")
    options = parser.parse_args()
    found = await measured(options, {})
    settings = {"tasks": options.size, "concurrency": options.concurrency, "claims_per_call": options.claims}
    if options.backend == "pg":
        report("lifecycle", found.pop("rate"), "tasks/s", **found, settings=settings)
        return
    with running_moto() as moto, keys_of_aws():
        queue = {"backend": "sqs", "endpoint": moto, "cloudwatch_endpoint": moto, "create": True}
        sqs = await measured(options, {"queue": queue})
    ratios = {"share_of_pgqueue": round(sqs["rate"] / found["rate"], 3)}
    own = [item["product_worker"]["tasks_per_s"] for item in (sqs, found)]
    ratios["product_worker_share_of_pgqueue"] = round(own[0] / own[1], 3)
    report("lifecycle_sqs", sqs.pop("rate"), "tasks/s", **sqs, pgqueue=found, ratios=ratios, settings=settings)


async def measured(options: argparse.Namespace, more: Mapping[str, Any]) -> dict[str, Any]:
    async with rig(more=more) as system:
        await deploy(system, "bench", DAG)
        await hand_to_workers(system, "work")
        alone, _ = await tasks_per_second(system, options.size, options.concurrency, 1, first=10**6)
        turns: list[tuple[float, dict[str, float], float]] = []
        for turn in range(1, TURNS + 1):
            first = turn * 10**7
            rate, cpu = await tasks_per_second(system, options.size, options.concurrency, options.claims, first=first)
            own = await product_tasks_per_second(system, options.size, options.concurrency, first=first + 5 * 10**6)
            turns.append((rate, cpu, own))
        rate, cpu, _ = sorted(turns, key=lambda item: item[0])[TURNS // 2]
        own = statistics.median(own for *_, own in turns)
        bare = await asyncio.to_thread(pairs_per_second, system)
    return {
        "rate": rate,
        "share": round(rate / bare, 3),
        "bare_pairs_per_s": round(bare),
        "one_claim_per_call": round(alone),
        "product_worker": {"tasks_per_s": round(own), "ratio": round(own / rate, 2)},
        "by_turn": [{"tasks_per_s": round(item), "product_worker": round(other)} for item, _, other in turns],
        "cpu_ms_per_task": cpu,
    }


async def tasks_per_second(
    system: Rig, size: int, concurrency: int, claims: int, *, first: int
) -> tuple[float, dict[str, float]]:
    """`first`: the first of the cursors, so that each measurement has its own."""
    warm = min(100, size)
    async with working(system, lambda _: [], concurrency, claims) as worker:
        await emit(system, "ask", warm, first=first)  # warms connections, plans and caches on both sides
        await trigger(system, "ask", cursor=first + warm)
        await worker.wait_for(warm + 1)
        await emit(system, "ask", size - 1, first=first + 1000)
        with cpu_seconds(system) as taken:
            began = time.perf_counter()
            await trigger(system, "ask", cursor=first + 101)  # an event that comes by the api, and notifies the others
            await worker.wait_for(warm + 1 + size)
            rate = size / (time.perf_counter() - began)
        return rate, per_task_ms(taken, size)


async def product_tasks_per_second(system: Rig, size: int, concurrency: int, *, first: int) -> float:
    warm = min(100, size)
    async with product_working(system, concurrency) as worker:
        await emit(system, "ask", warm, first=first)
        await trigger(system, "ask", cursor=first + warm)
        await worker.wait_for(warm + 1)
        await emit(system, "ask", size - 1, first=first + 1000)
        began = time.perf_counter()
        await trigger(system, "ask", cursor=first + 101)
        await worker.wait_for(warm + 1 + size)
        return size / (time.perf_counter() - began)


def pairs_per_second(system: Rig) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(BARE)
        script.flush()
        psql = [str(binaries() / "psql"), system.state]
        columns = "id uuid PRIMARY KEY, status text DEFAULT 'Queued', lease uuid, expires timestamptz, done timestamptz"
        table = f"CREATE TABLE bare ({columns})"
        subprocess.run([*psql, "-qc", table], check=True)
        argv = [str(binaries() / "pgbench"), "-n", "-c", "8", "-j", "2", "-T", "5", "-f", script.name, system.state]
        output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return next(float(line.split("=")[1].split()[0]) for line in output.splitlines() if line.startswith("tps"))


if __name__ == "__main__":
    uvloop.run(main())
