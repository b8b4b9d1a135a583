"""A small whole system for fault tests: real Postgres, Dispatchers and workers as processes.

Time is Postgres's alone, so a test may let it pass: `elapse` ends every lease, hold, pause and visibility that runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.faults.backends import Faults
from tests.support.identity.service_tokens import TOKENS, AnyService, local_tokens
from tests.support.tls import https
from tests.support.waiting import SECONDS, until
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.home import public_pem
from tracelake.lite.network_ports import free_ports
from tracelake.lite.user_token import mint_user_token
from tracelake.ports import ObjectStore
from tracelake.runtime.tls import TlsFiles
from tracelake.settings import IdentitySettings
from tracelake.store.db import OUTAGES
from tracelake.store.first_start import FIRST_ADMIN, ensure_first_rows
from tracelake.wire.calls.user_calls import USER


class Child:
    """A process that the fork_server started."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = None  # it was that quick

    def alive(self) -> bool:
        return self._handle is not None and not select.select([self._handle], [], [], 0)[0]

    def send(self, number: signal.Signals) -> None:
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    async def ended(self, seconds: float = SECONDS) -> bool:
        """Whether it ends within so many seconds."""
        return await self._becomes(lambda: not self.alive(), "it has ended", seconds)

    async def stopped(self, seconds: float = SECONDS) -> bool:
        """Whether a SIGSTOP stops it: the kernel reports it."""
        return await self._becomes(lambda: _state(self.pid) == "T", "it is stopped", seconds)

    async def until_said(self, *words: str) -> None:
        """Until its log has one of these."""
        try:
            await until(lambda: any(word in self.said() for word in words), f"{words} are in its log")
        except TimeoutError as late:
            raise AssertionError(self.said()) from late

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.send(number)
        assert await self.ended(), self.said()

    async def _becomes(self, condition: Callable[[], bool], what: str, seconds: float) -> bool:
        with suppress(TimeoutError):
            return await until(condition, what, seconds=seconds, every=0.005)
        return False

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class ForkServer:
    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def start(self, role: str, settings: dict[str, Any], log: Path, **more: Any) -> Child:
        asked = {"role": role, "settings": settings, "log": str(log), **more}
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps(asked) + "\n")
        self._program.stdin.flush()
        return Child(int(self._program.stdout.readline()), log)


@contextmanager
def running_fork_server() -> Iterator[ForkServer]:
    """Its children die with it."""
    with subprocess.Popen(
        program("fork_server"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as server:
        try:
            yield ForkServer(server)
        finally:
            server.kill()


@dataclass
class System:
    fork_server: ForkServer
    folder: Path
    state_dsn: str
    queue_dsn: str
    tls: TlsFiles
    pool: asyncpg.Pool
    queue_pool: asyncpg.Pool
    listeners: list[tuple[int, int]]
    """Task and internal port of each Dispatcher that there may be."""
    started: list[Child] = field(default_factory=list)

    @property
    def objects(self) -> ObjectStore:
        """Where the Dispatchers look for what workers wrote."""
        return DiskObjects(self.folder / "home" / "objects")

    def dispatcher(
        self,
        *,
        point: str | None = None,
        nth: int = 1,
        how: str = "kill",
        replica: int = 0,
        state_dsn: str | None = None,
        faults: Faults | None = None,
        clock: Path | None = None,
        hold: Path | None = None,
        hook_secrets: dict[str, str] | None = None,
        **state: Any,
    ) -> Child:
        """`clock`: a file that says by how many seconds this process's own clock is wrong.

        `hold`: when there is such a file, all its connections are held for ever. `state`: settings of that group.
        """
        task, internal = self.listeners[replica]
        more = {
            "state": {"dsn": state_dsn or self.state_dsn, **state},
            "dispatcher": {"task_port": task, "internal_port": internal},
            "hook_secrets": hook_secrets or {},
        }
        return self._start("dispatcher", more, {"point": point, "nth": nth, "how": how}, faults, hold=hold, clock=clock)

    def worker(
        self,
        *,
        point: str | None = None,
        nth: int = 1,
        how: str = "kill",
        replica: int = 0,
        faults: Faults | None = None,
        hold: Path | None = None,
        clock: Path | None = None,
    ) -> Child:
        task, internal = self.listeners[replica]
        more = {
            "endpoints": {"dispatcher_task": url_of(task), "dispatcher_internal": url_of(internal)},
            "identity": {"service_token": TOKENS["worker"]},
        }
        return self._start("worker", more, {"point": point, "nth": nth, "how": how}, faults, hold=hold, clock=clock)

    def sink(
        self, data_dsn: str, *, point: str | None = None, nth: int = 1, how: str = "kill", role: str = "sink"
    ) -> Child:
        """`spark_sink`, as a role, has a Spark session of its own; `sink` does in its process what Spark would do."""
        more = {
            "data": {"dsn": data_dsn},
            "endpoints": {"dispatcher_internal": url_of(self.listeners[0][1])},
            "identity": {"service_token": TOKENS["sink"]},
        }
        return self._start(role, more, {"point": point, "nth": nth, "how": how}, None)

    def gateway(self, port: int, user_public_key: str, *, replica: int = 0, **http: Any) -> Child:
        more = {
            "gateway": {"port": port},
            "http": http,
            "endpoints": {"dispatcher_internal": url_of(self.listeners[replica][1])},
            "identity": {"service_token": TOKENS["gateway"], "user_public_key": user_public_key},
        }
        return self._start("gateway", more, {"point": None, "nth": 1, "how": "kill"}, None)

    def scheduler(
        self, *, point: str | None = None, nth: int = 1, replica: int = 0, clock: Path | None = None
    ) -> Child:
        more = {
            "endpoints": {"dispatcher_internal": url_of(self.listeners[replica][1])},
            "identity": {"service_token": TOKENS["scheduler"]},
        }
        return self._start("scheduler", more, {"point": point, "nth": nth, "how": "kill"}, None, clock=clock)

    def delivery(
        self, data_dsn: str, *, point: str | None = None, nth: int = 1, how: str = "kill", **settings: Any
    ) -> Child:
        more = {
            "data": {"delivery_dsn": data_dsn},
            "endpoints": {"dispatcher_internal": url_of(self.listeners[0][1])},
            "identity": {"service_token": TOKENS["delivery"]},
            "delivery": settings,
        }
        return self._start("delivery", more, {"point": point, "nth": nth, "how": how}, None)

    def _start(
        self, role: str, more: dict[str, Any], armed: dict[str, Any], faults: Faults | None, **files: Path | None
    ) -> Child:
        document = {
            "home": str(self.folder / "home"),
            "queue": {"dsn": self.queue_dsn},
            "tls": {"ca": str(self.tls.ca), "cert": str(self.tls.cert), "key": str(self.tls.key)},
            "log": {"level": "warning"},
            "loops": {"reconcile_seconds": 0.5},
            "runtimes": {"parked": {"queue": "tasks-parked"}},
            "faults": armed,
            **more,
        }
        log = self.folder / f"{len(self.started)}-{role}.log"
        said = {name: str(file) if file else None for name, file in {"hold": None, "clock": None, **files}.items()}
        child = self.fork_server.start(role, document, log, faults=asdict(faults) if faults else None, **said)
        self.started.append(child)
        return self.started[-1]

    async def elapse(self, *, leases: bool = True) -> None:
        await elapse(self.pool, self.queue_pool, leases=leases)

    async def taken_over(self) -> None:
        """Until others have taken all whose time had run out when this was called."""
        moment = await self.pool.fetchval("SELECT now()")
        await until(lambda: self.pool.fetchval(f"SELECT 0 = ({OVERDUE})", moment), "nothing is overdue any more")

    async def drained(self) -> None:
        await drained(self.pool, self.queue_pool)


async def elapse(pool: asyncpg.Pool, queue_pool: asyncpg.Pool, *, leases: bool = True) -> None:
    """Everything that only waits for time to pass has waited long enough."""
    with suppress(*OUTAGES):
        for statement in ELAPSED if leases else ELAPSED[1:]:
            await pool.execute(statement)
        await queue_pool.execute("UPDATE pgqueue.messages SET visible_at = now() WHERE visible_at > now()")


async def drained(pool: asyncpg.Pool, queue_pool: asyncpg.Pool) -> None:
    """Nothing is pending, queued, running or on its way to a worker. Time is advanced whenever nothing moves.

    So many seconds without anything moving are too long; how long all of it takes depends on the machine.
    """
    left: dict[str, Any] = {}
    still, deadline = 0, time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        now = await _left(pool, queue_pool)
        if not any(now.values()):
            return
        still = still + 1 if now == left else 0
        if now != left:
            left, deadline = now, time.monotonic() + SECONDS
        if still and still % 6 == 0:
            await elapse(
                pool, queue_pool, leases=False
            )  # they are short, and a slow worker must be able to keep its own
        await asyncio.sleep(0.05)
    raise AssertionError(f"it does not drain: {left}")


async def _left(pool: asyncpg.Pool, queue_pool: asyncpg.Pool) -> dict[str, Any]:
    try:
        row = await pool.fetchrow(LEFT)
        waiting = "SELECT count(*) FROM pgqueue.messages WHERE queue ~ '^tasks-ecs_(platform|udf)'"
        return {**dict(row or {}), "messages": await queue_pool.fetchval(waiting)}
    except OUTAGES:
        return {"the database": "is away"}


# What a frozen process holds locked is passed over: to wait for it here would be to wait for ever.
ELAPSED = (
    (
        "UPDATE tasks SET lease_expires_at = now() WHERE id IN (SELECT id FROM tasks"
        " WHERE status = 'Running' AND lease_expires_at > now() FOR UPDATE SKIP LOCKED)"
    ),
    (
        "UPDATE tasks SET next_retry_at = now() WHERE id IN (SELECT id FROM tasks"
        " WHERE status = 'Failed' AND next_retry_at > now() FOR UPDATE SKIP LOCKED)"
    ),
    (
        "UPDATE outbox SET taken_until = now() WHERE id IN (SELECT id FROM outbox"
        " WHERE status = 'Processing' AND taken_until > now() FOR UPDATE SKIP LOCKED)"
    ),
    (
        "UPDATE outbox SET available_at = now() WHERE id IN (SELECT id FROM outbox"
        " WHERE status = 'Pending' AND available_at > now() FOR UPDATE SKIP LOCKED)"
    ),
)

OVERDUE = """
SELECT (SELECT count(*) FROM (SELECT FROM tasks
         WHERE status = 'Running' AND lease_expires_at <= $1 FOR UPDATE SKIP LOCKED) AS t)
     + (SELECT count(*) FROM (SELECT FROM outbox
         WHERE status = 'Processing' AND taken_until <= $1 FOR UPDATE SKIP LOCKED) AS o)
"""

LEFT = """
SELECT (SELECT count(*) FROM outbox WHERE status IN ('Pending', 'Processing')) AS pending,
       (SELECT count(*) FROM tasks WHERE status IN ('Queued', 'Running')) AS open,
       (SELECT count(*) FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL) AS to_retry,
       (SELECT count(*) FROM held_events) AS held
"""


@asynccontextmanager
async def a_system(fork_server: ForkServer, state_dsn: str, queue_dsn: str, folder: Path) -> AsyncIterator[System]:
    await asyncio.to_thread(ensure_first_rows, state_dsn, local_tokens())
    tls = ensure_certificates(folder / "tls", datetime.now(UTC))
    async with (
        asyncpg.create_pool(state_dsn, min_size=0, max_size=3) as pool,
        asyncpg.create_pool(queue_dsn, min_size=0, max_size=2) as queue_pool,
    ):
        ports = free_ports(4)
        listeners = [(ports[0], ports[1]), (ports[2], ports[3])]
        system = System(fork_server, folder, state_dsn, queue_dsn, tls, pool, queue_pool, listeners)
        try:
            yield system
        finally:
            for child in system.started:
                child.send(signal.SIGKILL)
            pool.terminate()
            queue_pool.terminate()


async def is_ready(http: httpx.AsyncClient, url: str = "/readyz") -> bool:
    return (await http.get(url)).is_success


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def url_of(port: int) -> str:
    return f"https://127.0.0.1:{port}"


@asynccontextmanager
async def worker_client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    url = url_of(system.listeners[0][1])
    async with https(url, system.tls.ca, headers={USER: FIRST_ADMIN}, auth=AnyService()) as http:
        yield http


def user_client(system: System, key: ec.EllipticCurvePrivateKey, port: int, **more: Any) -> httpx.AsyncClient:
    """The first admin's, of a Gateway at this port that knows the key."""
    token = mint_user_token(key, IdentitySettings(user_public_key=public_pem(key)), FIRST_ADMIN)
    return https(url_of(port), system.tls.ca, headers={"authorization": f"Bearer {token}"}, **more)


async def until_ready(http: httpx.AsyncClient) -> None:
    await until(lambda: is_ready(http), "the Dispatcher is ready", ignoring=(httpx.HTTPError,))
