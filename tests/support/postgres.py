"""Postgres for tests: a server that a test starts and restarts, and transactions that it holds open."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from tests.support.waiting import SECONDS, until
from tracelake.errors import PostgresFailed
from tracelake.lite.launch import spawn
from tracelake.lite.postgres import SUPERUSER, Cluster, _last_error, answers, prepare, reset_password

# A test's database need not survive a power cut, only a kill: that needs no fsync. And nobody guesses its password for
# long: a login, of which a test has a dozen, need not take milliseconds.
QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "scram_iterations": "1",
}


@contextmanager
def running(cluster: Cluster) -> Iterator[RunningServer]:
    """A server for as long as the block lasts."""
    server = RunningServer(cluster)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class RunningServer:
    """A server without a supervisor."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.password = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._admin: psycopg.Connection[Any] | None = None
        """Kept: thousands of databases are made and dropped, and a connection is a third of that work."""

    @property
    def log(self) -> Path:
        return self.cluster.directory.with_suffix(".log")

    def start(self) -> None:
        prepare(self.cluster)
        self.password = self.password or reset_password(self.cluster)
        with self.log.open("ab") as log:
            self.process = spawn(self.cluster.launch(), log)
        wait_ready(self.dsn("postgres"), self.process, 30, self.log)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        self.stop(how)
        self.start()

    def dsn(self, database: str) -> str:
        return self.cluster.dsn(database, SUPERUSER, self.password)

    def create_database(self, name: str, template: str | None = None) -> str:
        # Its files are copied as they are: a tenth of what Postgres' default takes, which logs every page.
        copied = f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""
        self._execute(f'CREATE DATABASE "{name}"{copied}')
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        try:
            self._connected().execute(statement.encode())
        except psycopg.OperationalError:
            if not self._connected().closed:
                raise
            self._connected(again=True).execute(statement.encode())  # a test made the server end all connections

    def _connected(self, *, again: bool = False) -> psycopg.Connection[Any]:
        if self._admin is None or again:
            self._admin = psycopg.connect(self.dsn("postgres"), autocommit=True)
        return self._admin


def wait_ready(dsn: str, process: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    """Return once the server answers; say what its log says if it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            said = _last_error(log.read_text(errors="replace"))
            raise PostgresFailed(f"Postgres ended at start: {said}", where=str(log))
        if answers(dsn):
            return
        time.sleep(0.05)
    raise PostgresFailed(f"Postgres gave no answer within {seconds:.0f} s", where=str(log))


WAITING = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"


async def blocked_by(pool: asyncpg.Pool, pid: int, *, unless: asyncio.Task[Any] | None = None) -> list[int]:
    """Returns when other backends wait for this one, with their ids; or when `unless` has ended instead."""
    found: list[int] = []

    async def waits() -> bool:
        found[:] = [row["pid"] for row in await pool.fetch(WAITING, pid)]
        return bool(found) or (unless is not None and unless.done())

    await until(waits, f"another backend waits for {pid}")
    return found


@dataclass(frozen=True)
class Held:
    """An open transaction on a connection of its own."""

    connection: asyncpg.Connection
    pool: asyncpg.Pool

    async def blocks(self) -> int:
        """Returns when another backend waits for this transaction: its process id."""
        [pid] = await blocked_by(self.pool, self.connection.get_server_pid())
        return pid


@asynccontextmanager
async def held(dsn: str, pool: asyncpg.Pool) -> AsyncIterator[Held]:
    """Committed when the block ends; rolled back if it fails."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield Held(connection, pool)
    finally:
        await connection.close()
