"""A Dispatcher as it really runs, for benchmarks: embedded Postgres, a process of its own, TLS, tokens, the queue."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.support.identity.service_tokens import local_tokens
from tests.support.postgres import RunningServer, running
from tracelake.adapters.pg.queue import PgQueue
from tracelake.adapters.sqs.queue import SqsQueue
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.network_ports import free_port, free_ports
from tracelake.lite.postgres import Cluster
from tracelake.ports import Queue
from tracelake.settings import QueueSettings
from tracelake.store.first_start import ensure_first_rows
from tracelake.store.migrate import Database, migrate


@dataclass(frozen=True)
class Rig:
    server: RunningServer
    state: str
    pool: asyncpg.Pool
    queue: Queue
    task_api: str
    internal_api: str
    tls: ssl.SSLContext
    org_id: UUID
    dispatcher: subprocess.Popen[bytes]
    objects: Path
    """Where the Dispatcher looks for what workers wrote."""
    home: Path

    async def receive(self, most: int, wait: float = 1.0) -> list[Any]:
        return await self.queue.receive(
            "tasks-ecs_platform", max_messages=most, visibility=timedelta(minutes=5), wait=timedelta(seconds=wait)
        )


@asynccontextmanager
async def rig(*, settings: dict[str, str] | None = None, more: Mapping[str, Any] | None = None) -> AsyncIterator[Rig]:
    """`settings` are Postgres's, `more` are further settings of the Dispatcher; a `queue` in it is ours too."""
    folder = _folder()
    try:
        with running(Cluster("bench", folder / "data", folder / "s", free_port(), settings=settings or {})) as server:
            async with _dispatching(server, folder, more or {}) as made:
                yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _dispatching(server: RunningServer, folder: Path, more: Mapping[str, Any]) -> AsyncIterator[Rig]:
    databases: list[Database] = ["state", "queue"]
    for database in databases:
        migrate(server.create_database(database), database)
    state = server.dsn("state")
    ensure_first_rows(state, local_tokens())
    tls = ensure_certificates(folder / "tls", datetime.now(UTC))
    ports = free_ports(2)
    document = {
        "home": str(folder / "home"),
        "state": {"dsn": state},
        "queue": {"dsn": server.dsn("queue")},
        "tls": {"ca": str(tls.ca), "cert": str(tls.cert), "key": str(tls.key)},
        "dispatcher": {"task_port": ports[0], "internal_port": ports[1]},
        "log": {"level": "warning"},
        **more,
    }
    process = _start(document, folder / "dispatcher.log")
    queue = _queue(document["queue"])
    pool = await asyncpg.create_pool(state, min_size=1, max_size=2)
    try:
        await listening(ports[1], process)
        org_id = await pool.fetchval("SELECT id FROM orgs")
        listeners = [f"https://127.0.0.1:{port}" for port in ports]
        context = ssl.create_default_context(cafile=tls.ca)
        home = folder / "home"
        yield Rig(
            server, state, pool, queue, listeners[0], listeners[1], context, org_id, process, home / "objects", home
        )
    finally:
        process.terminate()
        process.wait()
        await queue.close()
        pool.terminate()


def _queue(settings: Mapping[str, Any]) -> Queue:
    if settings.get("backend") == "sqs":
        return SqsQueue(QueueSettings(**settings))
    return PgQueue(settings["dsn"], connections=2)


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    folder.chmod(0o711)
    return folder


def _start(document: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tracelake", "dispatcher", "--settings", "-"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(document).encode())
    process.stdin.close()
    return process


async def listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the process accepts connections."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{process.args!r} ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise AssertionError(f"{process.args!r} does not listen")
