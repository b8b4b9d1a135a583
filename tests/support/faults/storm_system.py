"""A whole Trace for a storm: `trace up`, a dev chain that it follows, a webhook that it calls, small disks for
files, data Postgres and Spark, and a state database behind a proxy that cuts connections.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import psycopg

from tests.support.chain.devchain import Devchain
from tests.support.chain.devchain import running as running_chain
from tests.support.faults.postgres_proxy import Proxy, cutting
from tests.support.loop_thread import LoopThread
from tests.support.postgres import RunningServer
from tests.support.systems.trace_up import TraceUp
from tests.support.tls import trusting
from tests.support.waiting import SECONDS
from tracelake.lite.end_orphans import members_of
from tracelake.lite.home import Home
from tracelake_demo.check_rows import Story
from tracelake_demo.receiver import Hook, listening
from tracelake_demo.system import SHORT_RUN, Running

STORY: Final = Story(past=200, piece=50, size=20)
FINALITY: Final = 16
CHAIN_ID: Final = 1337
DISKS: Final = {
    "the object store": ("objects", 96),
    "data Postgres": ("postgres", 640),
    "Spark's scratch": ("work", 256),
}
"""Folders of the home, each on a small disk of its own with so many megabytes."""
FUNCTION: Final = "large_transfers"
LEASE: Final = "heartbeat_timeout_seconds: 15s"
"""Whoever was killed is given up after so long; usual are two minutes."""
SMALLER: Final = {
    "chunk: 2000": f"chunk: {STORY.piece}",
    "2000": str(STORY.past),
    "size: 50": f"size: {STORY.size}",
    "grace_seconds: 5": "grace_seconds: 1",
    "retry: {backoff: 2s, max_backoff: 1m}": f"retry: {{backoff: 1s, max_backoff: 5s}}\n  {LEASE}",
}
"""The quickstart as it is, for a chain of some hundred blocks and an end that comes soon."""
CLIENTS: Final = f"""
name: clients
defaults:
  runtime: ecs_platform
  retry: {{backoff: 1s, max_backoff: 5s}}
  {LEASE}
jobs:
  - {{name: call, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - {{name: answer, operator: noop, inputs: [{{from: {{job: call}}}}]}}
publish:
  calls: {{job: call}}
"""
SETTINGS: Final = SHORT_RUN | {
    "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(CHAIN_ID),
    "TRACE_DELIVERY__ALLOW": "127.0.0.0/8",
    "TRACE_UP__BACKOFF_MAX_SECONDS": "2",  # processes are killed on purpose: they need not be held back
    "TRACE_UP__WATCHDOG_SECONDS": "30",
}


@dataclass(frozen=True)
class CheckedSystem:
    """What the checker needs of a system."""

    running: Running
    devchain: Devchain
    hook: Hook
    state_dsn: str
    """Of the state database, past any proxy."""

    def all_ready(self) -> bool:
        return all(process["state"] == "ready" for process in self.running.processes())

    def state(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.state_dsn) as connection:
            return connection.execute(statement.encode()).fetchall()


@dataclass(frozen=True)
class WholeSystem(CheckedSystem):
    proxy: Proxy
    loop: LoopThread
    """In which the proxy runs."""
    disks: Mapping[str, Path]
    """Small disks by what lies on them; none where this user may not mount any."""

    def family(self, name: str) -> list[int]:
        """A process of `trace up` and whatever it started."""
        pid = self.running.process(name)["pid"]
        return members_of({int(pid)}) if pid else []


@contextmanager
def whole_system(folder: Path, postgres: RunningServer) -> Iterator[WholeSystem]:
    """With its DAGs deployed; everything that it started has ended when the block is left."""
    home, name = Home(folder / "home"), f"storm_{uuid4().hex[:8]}"
    with ExitStack() as until_the_end:
        until_the_end.callback(postgres.drop_database, name)
        dsn = postgres.create_database(name)
        disks = until_the_end.enter_context(small_disks(home.root))
        loop, proxy, cut_dsn = until_the_end.enter_context(_proxied(dsn, folder))
        devchain = until_the_end.enter_context(running_chain(chain_id=CHAIN_ID, blocks=STORY.past, finality=FINALITY))
        hook = until_the_end.enter_context(listening())
        env = SETTINGS | {"TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={devchain.node('a')}", "TRACE_STATE__DSN": cut_dsn}
        running = until_the_end.enter_context(_up(home, env))
        system = WholeSystem(running, devchain, hook, dsn, proxy, loop, disks)
        deploy(system, folder)
        devchain.mine(40)  # not earlier: an alert raised before the DAG that delivers alerts is active is not delivered
        yield system


@contextmanager
def small_disks(home: Path) -> Iterator[Mapping[str, Path]]:
    made: dict[str, Path] = {}
    try:
        for name, (folder, megabytes) in DISKS.items():
            if _mounted(home / folder, megabytes):
                made[name] = home / folder
        yield made
    finally:
        for place in made.values():
            subprocess.run(["umount", "-l", place], check=True)


def _mounted(place: Path, megabytes: int) -> bool:
    """Whether there is a file system of its own at this place now."""
    place.mkdir(parents=True, mode=0o700)
    options = f"size={megabytes}m,mode=0700"
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True, check=False)
    return mount.returncode == 0


@contextmanager
def _proxied(dsn: str, folder: Path) -> Iterator[tuple[LoopThread, Proxy, str]]:
    loop, opened = LoopThread(), cutting(dsn, folder)
    try:
        proxy, cut_dsn = loop.do(opened.__aenter__())
        yield loop, proxy, cut_dsn
        loop.do(opened.__aexit__(None, None, None))
    finally:
        loop.close()


@contextmanager
def _up(home: Home, env: dict[str, str]) -> Iterator[Running]:
    with TraceUp(home.root, env=env).running(), reached(home) as running:
        yield running


@contextmanager
def reached(home: Home) -> Iterator[Running]:
    """Calls to the `trace up` of this home."""
    ready = json.loads(home.all_ready.read_text())
    verify = trusting(ready["ca_file"])
    with httpx.Client(base_url=ready["endpoints"]["gateway"], verify=verify, timeout=SECONDS) as http:
        yield Running(home, ready, http)


def deploy(system: CheckedSystem, folder: Path) -> None:
    """The quickstart with its alerts, and what the clients call."""
    trace = system.running.trace
    system.hook.secret = trace("alert", "channel", "create", "ops", "--url", system.hook.url)["secret"]
    trace("alert", "create", FUNCTION, "--channel", "ops")
    shipped = files("tracelake_demo")
    (folder / FUNCTION).symlink_to(str(shipped / FUNCTION))
    for name in ("evm_quickstart", "alerts"):
        (folder / f"{name}.yaml").write_text(_smaller(shipped.joinpath(f"{name}.yaml").read_text()))
    (folder / "clients.yaml").write_text(CLIENTS)
    for name in ("evm_quickstart", "alerts", "clients"):
        trace("dag", "deploy", str(folder / f"{name}.yaml"), "--activate")


def _smaller(yaml: str) -> str:
    for long, short in SMALLER.items():
        yaml = yaml.replace(long, short)
    return yaml
