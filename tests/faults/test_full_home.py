"""The file system below the home of a `trace up` is full: databases, logs, status file. Then there is space again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.support.faults.backends import fill, small_disk
from tests.support.systems.trace_up import LIGHT, TraceUp, short_run
from tests.support.waiting import wait_until

TRIGGER = "/v1/dags/shop/jobs/fetch/trigger"
DAG = "name: shop\njobs: [{name: fetch, operator: noop, runtime: dispatcher, source: {kind: manual}}]\n"
MOST_CALLS = 5000


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(192) as made:
        yield made


def test_a_full_home_stops_nothing_permanently_and_all_goes_on_when_there_is_space(disk: Path) -> None:
    """`up` writes its own lines to the same disk, as with --detach."""
    system = short_run(disk, "--without", LIGHT, env={"TRACE_UP__BACKOFF_MAX_SECONDS": "1"})
    system.start()
    try:
        with system.client() as http:
            deploy(http)
            before = serving(system)
            logs = (disk / "up.log", *(system.home / "logs").glob("*.log"))
            ballast = fill(disk, *logs)
            accepted, refused = trigger_until_refused(http)
            assert_names_the_disk(refused)
            os.kill(int(system.processes()["postgres-state"]["pid"]), signal.SIGKILL)  # as its PANIC on a full disk
            fill(disk, *logs)
            wait_until(
                lambda: "the disk of the home folder is full" in state_of(system, "postgres-state"), "it is reported"
            )
            away = http.post(TRIGGER, json={"cursor": 1})
            assert_names_the_disk(away)
            assert away.json()["error"]["message"] == "the disk of the home folder is full: nothing was stored"
            assert serving(system) == before, "no other process ended"
            ballast.unlink()
            wait_until(lambda: http.post(TRIGGER, json={"cursor": 2}).is_success, "a trigger is stored")
            assert not any(trigger(http, request).json()["created"] for request in accepted), "each is stored"
            wait_until(lambda: system.trace("status").returncode == 0, "every process is ready")
            assert serving(system) == before
    finally:
        assert system.stop() == 0


def deploy(http: httpx.Client) -> None:
    version = http.post("/v1/dags/shop/versions", json={"yaml": DAG}).json()["dag_version_id"]
    assert http.put("/v1/dags/shop/active", json={"dag_version_id": version}).is_success


def serving(system: TraceUp) -> dict[str, Any]:
    return {name: system.processes()[name]["pid"] for name in ("dispatcher", "gateway")}


def state_of(system: TraceUp, name: str) -> str:
    """As `trace status --json` shows it."""
    shown = json.loads(system.trace("status", "--json").stdout)
    return next(f"{process['state']}: {process['status']}" for process in shown["processes"] if process["name"] == name)


def trigger(http: httpx.Client, request: UUID) -> httpx.Response:
    return http.post(TRIGGER, json={"cursor": 1, "request_id": str(request)})


def trigger_until_refused(http: httpx.Client) -> tuple[list[UUID], httpx.Response]:
    accepted: list[UUID] = []
    while len(accepted) < MOST_CALLS:
        request = uuid4()
        answer = trigger(http, request)
        if not answer.is_success:
            return accepted, answer
        accepted.append(request)
    raise AssertionError("it was never refused")


def assert_names_the_disk(refused: httpx.Response) -> None:
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["retryable"]) == (503, "disk_full", True), refused.text
    assert refused.headers["retry-after"] == "10"
