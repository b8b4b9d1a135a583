"""Credentials a second: tasks ask at the task api, an STS stub in a process of its own answers.

The stub's time is not ours: `cpu_ms` says what the Dispatcher and Postgres spend on one set of keys.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, rig
from tests.support.identity.service_tokens import as_service

TASKS = 50
DAG = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2_000, help="sets of keys")
    parser.add_argument("--clients", type=int, default=16, help="asking at once")
    given = parser.parse_args()
    with _sts() as url:
        settings = {
            "objects": {"backend": "s3", "endpoint": url},
            "credentials": {
                "role_arn": "arn:aws:iam::000000000000:role/bench",
                "endpoint": url,
                "access_key_id": "bench",
                "secret_access_key": "bench",
            },
        }
        async with rig(more=settings) as system, _http(system) as http:
            claimed = await _claimed(system, http)
            await _minted(system, http, claimed, 100, given.clients)
            with cpu_seconds(system) as taken:
                seconds = await _minted(system, http, claimed, given.size, given.clients)
    cpu = per_task_ms(taken, given.size)
    settings = {"sets": given.size, "clients": given.clients}
    report("credentials", given.size / seconds, "sets/s", cpu_ms=cpu, settings=settings)


async def _claimed(system: Rig, http: aiohttp.ClientSession) -> list[Any]:
    await deploy(system, "bench", DAG)
    for _ in range(TASKS):
        await system.pool.execute(
            "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
            " SELECT org_id, id, $1, 3600, now() FROM jobs WHERE name = 'work'",
            str(uuid4()),
        )
    answers = []
    for row in await system.pool.fetch("SELECT id FROM tasks WHERE woken_at IS NOT NULL AND status = 'Queued'"):
        body = json.dumps({"task_id": str(row["id"]), "worker_id": "bench"})
        headers = as_service("worker")
        async with http.post(f"{system.internal_api}/internal/task-claim", data=body, headers=headers) as answer:
            answers.append(await answer.json())
    return answers


async def _minted(system: Rig, http: aiohttp.ClientSession, claimed: list[Any], count: int, clients: int) -> float:
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            one = claimed[number % len(claimed)]
            fence = {name: one[name] for name in ("attempt", "lease_token")}
            body = json.dumps({"task_id": one["task"]["task_id"], **fence})
            headers = {"X-Trace-Task-Capability": one["capability_token"]}
            async with http.post(f"{system.task_api}/v1/task/credentials", data=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began


def _http(system: Rig) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=system.tls, limit=0))


@contextmanager
def _sts() -> Iterator[str]:
    stub = subprocess.Popen(
        [sys.executable, "-m", "tests.support.programs.sts_stub"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stub.stdin is not None
    assert stub.stdout is not None
    try:
        yield stub.stdout.readline().strip()
    finally:
        stub.stdin.close()
        stub.wait()


if __name__ == "__main__":
    uvloop.run(main())
