"""Runs the embedded servers of a stopped home while something is loaded into them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tracelake.errors import PostgresFailed, SetupError
from tracelake.lite import postgres
from tracelake.lite.home import Home, new_socket_folder
from tracelake.lite.launch import Launch, spawn
from tracelake.lite.network_ports import choose_store_ports, free_port
from tracelake.lite.provision import Embedded, ExternalDsns, owner_dsns
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.ports import ObjectStore
from tracelake.settings import Settings
from tracelake.store.migrate import Database
from tracelake.store.roles import Instance, ensure_databases, ensure_role_names
from tracelake.wiring import make_objects, s3_objects

START_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.05


@contextmanager
def running_databases(home: Home, settings: Settings) -> Iterator[Mapping[Database, str]]:
    """DSNs of the three databases, which exist; those of embedded servers are empty at first, and have their roles."""
    external = ExternalDsns.of(settings)
    with ExitStack() as until_the_end:
        sockets = new_socket_folder()
        until_the_end.callback(shutil.rmtree, sockets, ignore_errors=True)
        wanted: dict[Instance, bool] = {"state": external.embeds_state, "data": external.embeds_data}
        servers: dict[Instance, Embedded] = {
            name: until_the_end.enter_context(_server(name, home, settings, sockets))
            for name, embedded in wanted.items()
            if embedded
        }
        yield owner_dsns(external, servers.get("state"), servers.get("data"))


@contextmanager
def running_store(home: Home, settings: Settings) -> Iterator[ObjectStore]:
    """The object store; SeaweedFS runs while the block does."""
    if settings.objects.backend != "seaweedfs":
        yield make_objects(settings)
        return
    server = SeaweedFS(home.seaweedfs, choose_store_ports(0), settings.objects, exports=settings.query.export_prefix)
    try:
        with _process(server.launch(), home.logs / "seaweedfs.log", server.answers, signal.SIGKILL):
            yield s3_objects(server.objects_for("worker"))
    finally:
        server.clear()


@contextmanager
def _server(name: Instance, home: Home, settings: Settings, sockets: Path) -> Iterator[Embedded]:
    cluster = postgres.Cluster(
        name, home.postgres / name, sockets / f"pg-{name}", free_port(), os_user=settings.postgres.os_user
    )
    postgres.prepare(cluster)
    server = Embedded(cluster, postgres.reset_password(cluster))
    log = home.logs / f"postgres-{name}.log"
    with _process(cluster.launch(), log, lambda: postgres.answers(server.admin()), signal.SIGINT):
        ensure_databases(server.admin(), name)
        ensure_role_names(server.admin(), name)
        yield server


@contextmanager
def _process(launch: Launch, log: Path, answers: Callable[[], bool], stop: signal.Signals) -> Iterator[None]:
    with log.open("ab") as lines:
        process = spawn(launch, lines)
    try:
        _wait(process, answers, log)
        yield
    finally:
        process.send_signal(stop)
        process.wait()


def _wait(process: subprocess.Popen[bytes], answers: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            error = SetupError if "seaweedfs" in log.name else PostgresFailed
            raise error(f"{log.stem} did not start", where=str(log), hint="its log has the reason")
        time.sleep(LOOK_SECONDS)
