"""An embedded Postgres server that a test or a benchmark starts, stops and restarts itself."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tracelake.errors import PostgresFailed
from tracelake.lite.launch import spawn
from tracelake.lite.postgres import SUPERUSER, Cluster, _last_error, answers, prepare, reset_password


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
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        self.stop(how)
        self.start()

    def dsn(self, database: str) -> str:
        return self.cluster.dsn(database, SUPERUSER, self.password)

    def create_database(self, name: str, template: str | None = None) -> str:
        # Its files are copied as they are: a tenth of what Postgres' default takes, which logs every page.
        copied = f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"{copied}'.encode())
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())


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
