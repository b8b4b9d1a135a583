"""Signed deliveries to a webhook source, accepted and committed: over HTTPS to a Gateway, and by it to a Dispatcher.

Each delivery has its own body, is answered when it is committed, and makes a task. One Gateway, one Dispatcher and one
Postgres on this machine, which also runs the senders.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.cpu import cpu_seconds, per_task_ms
from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, listening, rig
from tests.support.identity.hook_signatures import sign
from tests.support.identity.service_tokens import TOKENS
from tracelake.domain.sources.signatures import HookScheme
from tracelake.lite.network_ports import free_port

SECRET = "a-secret-of-the-benchmark"  # noqa: S105 - of a database that lives for a minute
DAG = """
name: bench
jobs:
  - name: hook
    operator: read_files
    runtime: ecs_platform
    source: {kind: webhook, scheme: standard, secret: BENCH}
    config: {path: a, format: csv}
"""
ACCEPTED = 202
TARGET = 500
WARM_UP = 200
_numbers = count()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=3000, help="deliveries")
    parser.add_argument("--concurrency", type=int, default=64, help="calls in progress at once")
    options = parser.parse_args()
    async with rig(more={"hook_secrets": {"bench": SECRET}}) as system, gateway(system) as (public, sender):
        await deploy(system, "bench", DAG)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=system.tls, limit=0)) as http:
            url = f"{public}/v1/hooks/default/bench/hook"
            await deliver(http, url, WARM_UP, options.concurrency)
            with cpu_seconds(system) as taken, cpu_of(sender.pid) as gateways:
                rate, waits = await deliver(http, url, options.size, options.concurrency)
        stored = await system.pool.fetchval("SELECT count(*) FROM source_deliveries")
        tasks = await system.pool.fetchval("SELECT count(*) FROM tasks")
    assert stored == tasks == WARM_UP + options.size, (stored, tasks)
    cpu = per_task_ms({**taken, "gateway": gateways[0]}, options.size)
    report(
        "hooks",
        rate,
        "deliveries/s",
        target=TARGET,
        p50_ms=round(statistics.median(waits) * 1000, 1),
        p99_ms=round(sorted(waits)[int(len(waits) * 0.99)] * 1000, 1),
        cpu_ms_per_delivery=cpu,
        cores_at_target=round(TARGET * sum(cpu.values()) / 1000, 2),
        settings={"deliveries": options.size, "concurrency": options.concurrency},
    )


async def deliver(http: aiohttp.ClientSession, url: str, size: int, concurrency: int) -> tuple[float, list[float]]:
    """Deliveries in a second, and how long each was waited for."""
    left, waits = iter(range(size)), list[float]()

    async def send() -> None:
        for _ in left:
            number = next(_numbers)
            body = json.dumps({"number": number, "text": "x" * 400}).encode()
            headers = sign(HookScheme.STANDARD, body, SECRET, time.time(), f"msg_{number}")
            began = time.perf_counter()
            async with http.post(url, data=body, headers=headers) as answer:
                assert answer.status == ACCEPTED, await answer.text()
            waits.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(concurrency)))
    return size / (time.perf_counter() - began), waits


@asynccontextmanager
async def gateway(system: Rig) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """A Gateway of its own process."""
    port, folder = free_port(), system.home.parent / "tls"
    document = {
        "home": str(system.home),
        "tls": {"ca": str(folder / "ca.pem"), "cert": str(folder / "server.pem"), "key": str(folder / "server.pem")},
        "gateway": {"port": port},
        "endpoints": {"dispatcher_internal": system.internal_api},
        "identity": {"service_token": TOKENS["gateway"], "user_public_key": "-"},
        "log": {"level": "warning"},
    }
    process = _start(document)
    try:
        await listening(port, process)
        yield f"https://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


def _start(document: dict[str, Any]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "tracelake", "gateway", "--settings", "-"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(document).encode())
    process.stdin.close()
    return process


@contextmanager
def cpu_of(*pids: int) -> Iterator[list[float]]:
    """Seconds of processor time of each process, when the block has ended."""
    taken: list[float] = []
    before = [_cpu(pid) for pid in pids]
    yield taken
    taken += [_cpu(pid) - was for pid, was in zip(pids, before, strict=True)]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    uvloop.run(main())
