"""A whole Trace is backed up while it works, killed later, and restored: only the time in between is lost."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.support.chain.devchain import running as running_chain
from tests.support.faults.storm_checks import Line, Seen, checked, drained, table, wrong
from tests.support.faults.storm_system import CHAIN_ID, FINALITY, SETTINGS, STORY, CheckedSystem, deploy, reached
from tests.support.postgres import RunningServer
from tests.support.programs.storm_clients import Calls
from tests.support.systems.trace_up import TraceUp
from tests.support.tls import trusting
from tests.support.waiting import SECONDS, wait_until
from tracelake.lite.home import Home, holder
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake_demo.receiver import listening

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

QUEUED: Final = """
    SELECT t.id::text FROM tasks t JOIN jobs j ON j.id = t.job_id
     WHERE j.dag_name = 'clients' AND j.name = 'answer' AND t.status = 'Queued' AND t.woken_at IS NOT NULL"""
COMMITS: Final = "SELECT dataset_uuid::text, number FROM commits"
ATTEMPTS: Final = "SELECT task_id::text, attempt FROM task_attempts"


@dataclass(frozen=True)
class Claim:
    """What a worker holds of a task that it has claimed."""

    token: str
    report: Mapping[str, Any]

    def complete(self, system: CheckedSystem) -> httpx.Response:
        return _post(system, "dispatcher_task", "/v1/task/complete", self.report, {CAPABILITY_HEADER: self.token})


@dataclass
class Restored:
    """The system after the restore, drained."""

    system: CheckedSystem
    lost: dict[str, set[tuple[Any, ...]]]
    """What the system had when it was killed and no longer has: commits and attempts."""
    lines: list[Line] = field(default_factory=list)
    refused: dict[str, httpx.Response] = field(default_factory=dict)
    """The answers to workers of the time before."""


@pytest.fixture(scope="module")
def restored(postgres: RunningServer) -> Iterator[Restored]:
    folder = Path(tempfile.mkdtemp(prefix="trace-restore-"))
    try:
        with ExitStack() as until_the_end:
            yield _restored(folder, postgres, until_the_end)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_rows_events_and_alerts_are_exactly_what_they_must_be_after_a_restore(restored: Restored) -> None:
    print(table(restored.lines))  # noqa: T201 - what a run is for
    assert wrong(restored.lines) == []


def test_workers_of_the_time_before_are_refused(restored: Restored) -> None:
    assert {when: answer.status_code for when, answer in restored.refused.items()} == {
        "claimed before the backup": 401,
        "claimed after it": 401,
    }
    assert {answer.json()["error"]["reason"] for answer in restored.refused.values()} == {"unknown_key"}


@pytest.mark.parametrize(("kind", "statement"), [("commits", COMMITS), ("attempts", ATTEMPTS)])
def test_no_number_of_the_lost_time_is_issued_again(restored: Restored, kind: str, statement: str) -> None:
    assert restored.lost[kind]
    assert restored.lost[kind] & set(restored.system.state(statement)) == set()


def _restored(folder: Path, postgres: RunningServer, until_the_end: ExitStack) -> Restored:
    chain = until_the_end.enter_context(running_chain(chain_id=CHAIN_ID, blocks=STORY.past, finality=FINALITY))
    hook = until_the_end.enter_context(listening())
    env = SETTINGS | {
        "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={chain.node('a')}",
        "TRACE_RUNTIMES__LATE__QUEUE": "late",
    }
    former_dsn, dsn = _database(postgres, until_the_end), _database(postgres, until_the_end)
    former = TraceUp(folder / "former", env=env | {"TRACE_STATE__DSN": former_dsn})
    with former.running(), reached(Home(former.home)) as running:
        before = CheckedSystem(running, chain, hook, former_dsn)
        claims = _work_and_back_up(before, folder)
        former.stop(signal.SIGKILL)
    wait_until(lambda: holder(Home(former.home)) is None, "nothing runs")
    again = TraceUp(folder / "home", env=env | {"TRACE_STATE__DSN": dsn})
    done = again.trace("restore", str(folder / "backup"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = CheckedSystem(before.running, chain, hook, dsn)
    lost = {
        kind: set(before.state(sql)) - set(kept.state(sql))
        for kind, sql in {"commits": COMMITS, "attempts": ATTEMPTS}.items()
    }
    until_the_end.enter_context(again.running())
    system = CheckedSystem(until_the_end.enter_context(reached(Home(again.home))), chain, hook, dsn)
    made = Restored(system, lost)
    made.refused = {when: claim.complete(system) for when, claim in claims.items()}
    end, lines, _ = drained(system)
    made.lines = [*lines, *checked(Seen(system, end, Calls(0, 0)), "datasets", "alerts", "tasks", "history")]
    return made


def _work_and_back_up(system: CheckedSystem, folder: Path) -> dict[str, Claim]:
    """Backed up in the middle of its work; what two workers hold who have not reported when it is killed."""
    trace = system.running.trace
    deploy(system, folder)
    trace("trigger", "evm_quickstart", "backfill", "--range", f"0-{STORY.past - 1}")
    system.devchain.mine(40)
    before = _claim(system, cursor=1)
    wait_until(lambda: len(system.state(COMMITS)) > 5, "there are commits")
    trace("backup", str(folder / "backup"))
    kept = len(system.state(COMMITS))
    system.devchain.mine(30)
    system.devchain.reorg(4)
    after = _claim(system, cursor=2)
    wait_until(lambda: len(system.state(COMMITS)) > kept + 5, "there are commits after the backup")
    return {"claimed before the backup": before, "claimed after it": after}


def _claim(system: CheckedSystem, cursor: int) -> Claim:
    """A task that the worker of the system would have taken."""
    with _frozen(int(system.running.process("worker")["pid"])):
        system.running.trace("trigger", "clients", "call", "--cursor", str(cursor))
        (task,) = wait_until(lambda: system.state(QUEUED), "a task is queued")[0]
        return _claimed(system, task)


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _claimed(system: CheckedSystem, task: str) -> Claim:
    worker_token = (Path(system.running.ready["service_tokens"]) / "worker.token").read_text().strip()
    body = {"task_id": task, "worker_id": "late"}
    answer = _post(system, "dispatcher_internal", "/internal/task-claim", body, {"X-Trace-Worker-Token": worker_token})
    assert answer.json().get("lease_token"), answer.text
    claim = answer.json()
    report = {"task_id": task, "attempt": claim["attempt"], "lease_token": claim["lease_token"], "status": "Completed"}
    return Claim(claim["capability_token"], report)


def _post(
    system: CheckedSystem, listener: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> httpx.Response:
    ready = system.running.ready
    verify = trusting(ready["ca_file"])
    return httpx.post(ready["endpoints"][listener] + path, json=body, headers=headers, verify=verify, timeout=SECONDS)


def _database(postgres: RunningServer, until_the_end: ExitStack) -> str:
    name = f"restore_{uuid4().hex[:8]}"
    until_the_end.callback(postgres.drop_database, name)
    return postgres.create_database(name)
