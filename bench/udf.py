"""What the platform adds to a function: from the runner's listener into a warm sandbox and back, call after call.

The function returns at once, so all of the time is ours. `cold_ms`: the same for a bundle that nobody has run before.
"""

from __future__ import annotations

import argparse
import hashlib
import http.server
import io
import json
import statistics
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import uvloop

from bench.noop_worker import deploy
from bench.report import report
from bench.rig import Rig, rig
from tests.support.identity.service_tokens import TOKENS, as_service
from tracelake.lite.network_ports import free_port
from tracelake.udf.process import PATH

TOKEN = "bench-invoke-token"  # noqa: S105 - of a runner that lives for a minute
COLD = 5
DAG = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
"""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=500, help="warm calls")
    given = parser.parse_args()
    async with rig() as system, aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=system.tls)) as calls:
        with _runner(system) as api, _shelf() as shelf:
            claimed = await _claimed(system, calls)
            cold = [await _timed(calls, api, claimed, shelf.bundle()) for _ in range(COLD)]
            udf = shelf.bundle()
            for _ in range(20):
                await _timed(calls, api, claimed, udf)
            warm = [await _timed(calls, api, claimed, udf) for _ in range(given.size)]
    quantiles = statistics.quantiles(warm, n=100)
    report(
        "udf",
        statistics.median(warm),
        "ms",
        p95_ms=round(quantiles[94], 3),
        p99_ms=round(quantiles[98], 3),
        cold_ms=round(statistics.median(cold), 1),
        settings={"calls": given.size},
    )


async def _timed(calls: aiohttp.ClientSession, api: str, claimed: Any, udf: dict[str, Any]) -> float:
    body = json.dumps(_invocation(claimed, udf))
    began = time.perf_counter()
    async with calls.post(api + PATH, data=body, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
        body = await answer.text()
        assert answer.status == 200, body
        assert "X-Amz-Function-Error" not in answer.headers, body
    return (time.perf_counter() - began) * 1000


def _invocation(claimed: Any, udf: dict[str, Any]) -> dict[str, Any]:
    fence = {name: claimed[name] for name in ("lease_token", "lease_expires_at", "capability_token")}
    return {**claimed["task"], **fence, "udf": udf, "bundle_url": udf["url"]}


async def _claimed(system: Rig, calls: aiohttp.ClientSession) -> Any:
    await deploy(system, "bench", DAG)
    await system.pool.execute(
        "INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)"
        " SELECT org_id, id, $1, 3600, now() FROM jobs WHERE name = 'work'",
        str(uuid4()),
    )
    task = await system.pool.fetchval("SELECT id FROM tasks WHERE woken_at IS NOT NULL AND status = 'Queued'")
    body = json.dumps({"task_id": str(task), "worker_id": "bench"})
    headers = as_service("worker")
    async with calls.post(f"{system.internal_api}/internal/task-claim", data=body, headers=headers) as answer:
        return await answer.json()


@contextmanager
def _runner(system: Rig) -> Iterator[str]:
    """`trace runner`, beside the rig's Dispatcher."""
    port, tls = free_port(), system.home.parent / "tls"
    document = {
        "home": str(system.home),
        "tls": {"ca": str(tls / "ca.pem"), "cert": str(tls / "server.pem"), "key": str(tls / "server.pem")},
        "endpoints": {"dispatcher_task": system.task_api, "dispatcher_internal": system.internal_api},
        "identity": {"service_token": TOKENS["runner"]},
        "udf": {"port": port, "invoke_token": TOKEN},
        "log": {"level": "warning"},
    }
    process = subprocess.Popen([sys.executable, "-m", "tracelake", "runner", "--settings", "-"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(document).encode())
    process.stdin.close()
    try:
        _until_listening(port, process)
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    import socket

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the runner ended"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the runner does not listen")


class _Shelf:
    """Bundles by a plain URL."""

    def __init__(self, url: str, archives: dict[str, bytes]) -> None:
        self._url = url
        self._archives = archives

    def bundle(self) -> dict[str, Any]:
        """One that nobody has seen."""
        into = io.BytesIO()
        with zipfile.ZipFile(into, "w") as archive:
            archive.writestr("main.py", f"def handler(event, context): return None  # {uuid4()}\n")
        body = into.getvalue()
        sha256 = hashlib.sha256(body).hexdigest()
        self._archives[f"/{sha256}"] = body
        reference = {"bundle": "bench", "kind": "python", "handler": "main.handler"}
        return {**reference, "sha256": sha256, "size_bytes": len(body), "url": f"{self._url}/{sha256}"}


@contextmanager
def _shelf() -> Iterator[_Shelf]:
    archives: dict[str, bytes] = {}

    class Give(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(archives[self.path])))
            self.end_headers()
            self.wfile.write(archives[self.path])

        def log_message(self, *_: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Give)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield _Shelf(f"http://127.0.0.1:{server.server_port}", archives)
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    uvloop.run(main())
