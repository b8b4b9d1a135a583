"""A Dispatcher under `trace up` whose pool is stuck ends itself, and the supervisor's next one answers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.systems.trace_up import LIGHT, TraceUp, is_restarted, new_folder, short_run
from tests.support.waiting import wait_until
from tracelake.runtime.process import GAVE_UP

QUICK = {"POOL_MAX": "2", "ACQUIRE_SECONDS": "0.2", "STUCK_SECONDS": "3"}
CALLERS = 4
IDLE = """
SELECT pid FROM pg_stat_activity
 WHERE datname = %s AND application_name LIKE 'trace dispatcher%%' AND state = 'idle'
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()


def test_a_dispatcher_whose_pool_is_stuck_is_started_again_and_answers(folder: Path, postgres: RunningServer) -> None:
    """Its connections' server processes are frozen between two statements: Postgres answers all others."""
    names = {name: f"stuck_{name}_{os.getpid()}" for name in ("state", "data", "queue")}
    env = {f"TRACE_{name.upper()}__DSN": postgres.create_database(database) for name, database in names.items()}
    system = short_run(folder, "--without", LIGHT, env=env | {f"TRACE_STATE__{name}": v for name, v in QUICK.items()})
    system.start()
    try:
        me, before = system.me(), system.processes()["dispatcher"]["pid"]
        with freezing(postgres, names["state"]) as freeze, calling(system) as refused:
            wait_until(lambda: freeze() and not Path(f"/proc/{before}").exists(), "the Dispatcher has ended")
        assert "no_connection" in refused
        wait_until(lambda: is_restarted(system.processes()["dispatcher"], before), "the Dispatcher is restarted")
        assert system.me() == me
        assert system.processes()["dispatcher"]["restarts"] == 1
    finally:
        system.stop()
        for database in names.values():
            postgres.drop_database(database)
    assert f"dispatcher      restarting ended with exit code {GAVE_UP}" in system.output()
    assert "is stuck: its connections did nothing" in (system.home / "logs" / "dispatcher.log").read_text()


@contextmanager
def freezing(postgres: RunningServer, database: str) -> Iterator[Callable[[], bool]]:
    """Freezes the server processes that are between two statements, so that none holds a lock; all wake at the end."""
    frozen: set[int] = set()
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as admin:

        def idle() -> set[int]:
            return {pid for (pid,) in admin.execute(IDLE, [database]).fetchall()}

        def freeze() -> bool:
            fresh = idle() - frozen
            frozen.update(fresh)
            for pid in fresh:
                send(pid, signal.SIGSTOP)
            for pid in fresh - idle():  # it had begun a statement, or has ended
                send(pid, signal.SIGCONT)
                frozen.remove(pid)
            return bool(frozen)

        try:
            yield freeze
        finally:
            for pid in frozen:
                send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def calling(system: TraceUp) -> Iterator[set[str]]:
    """More callers at once than there are connections, for as long as the block lasts; gives the codes of refusals."""
    done, codes = threading.Event(), set[str]()
    callers = [threading.Thread(target=_call, args=(system, done, codes)) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield codes
    finally:
        done.set()
        for caller in callers:
            caller.join()


def _call(system: TraceUp, done: threading.Event, codes: set[str]) -> None:
    token = system.ready()["user_token"]
    while not done.is_set():
        with suppress(httpx.HTTPError):
            answer = system.get("gateway", "/v1/dags", Authorization=f"Bearer {token}")
            if not answer.is_success and not done.is_set():
                codes.add(answer.json()["error"]["code"])
