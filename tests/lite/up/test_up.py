"""`trace up` as a user runs it: real processes, attacked one by one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.support.systems.trace_up import TraceUp, is_restarted, memory_holds, new_folder, short_run
from tests.support.waiting import SECONDS, wait_until
from tracelake.lite.end_orphans import members_of


@pytest.fixture(scope="module")
def shared() -> Iterator[TraceUp]:
    """Everything, Spark included."""
    for folder in new_folder():
        made = short_run(folder, env={"TRACE_WORKER__MAX": "2", "TRACE_WORKER__SPARE_SECONDS": "1"})
        yield made
        if made.process is not None:
            made.stop()


@pytest.fixture
def system(shared: TraceUp) -> Iterator[TraceUp]:
    """It runs: the one test that stops it may come first. Every other one leaves it with all processes ready."""
    if not shared.is_running():
        shared.start()
    yield shared
    if shared.is_running():
        wait_until(lambda: states(shared) == {"ready"}, "every process is ready again")


def states(system: TraceUp) -> set[str]:
    return {process["state"] for process in system.processes().values()}


def test_every_process_is_ready_and_every_listener_answers_over_tls(system: TraceUp) -> None:
    assert states(system) == {"ready"}
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
    """After it nothing of the system may live; the next test starts it again."""
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
