"""A whole Trace in a storm of faults and clients. When all has drained, the checker's table is right in every line."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import ROOT
from tests.support.child_process import program
from tests.support.faults.storm_checks import Line, Seen, attempts_by_end, checked, drained, table, wrong
from tests.support.faults.storm_faults import Storm
from tests.support.faults.storm_system import STORY, WholeSystem, whole_system
from tests.support.postgres import RunningServer
from tests.support.programs.storm_clients import Calls, ClientRequest
from tracelake.domain.access.object_names import Folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # a storm of minutes needs a flag
TRIGGERS, QUERIES = 960, 40
DRAIN_SECONDS = 240
REMEMBER_A_TASK = """
    CREATE TEMP TABLE spoiled AS
    SELECT t.* FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'answer' AND t.status = 'Completed' LIMIT 1"""
FAIL_IT = """
    UPDATE tasks SET status = 'Failed', fault = 'platform', error_message = 'spoiled', outputs = NULL
     WHERE id = (SELECT id FROM spoiled)"""
MEND_IT = """
    UPDATE tasks t SET status = s.status, fault = NULL, error_message = NULL, outputs = s.outputs
      FROM spoiled s WHERE t.id = s.id"""


@dataclass(frozen=True)
class Aftermath:
    """A system after its storm, drained; it still runs."""

    seen: Seen
    storm: Storm
    lines: list[Line]

    def report(self) -> str:
        ends = {" by ".join(end): count for end, count in sorted(attempts_by_end(self.seen.system).items())}
        calls = self.seen.calls
        said = [f"refused calls: {calls.refused}; broken connections: {calls.broken}", f"attempts: {ends}"]
        return "\n".join(["", *self.storm.log, "", table(self.lines), "", *said, *calls.unclear[:5]])


@pytest.fixture(scope="module")
def aftermath(request: pytest.FixtureRequest, postgres: RunningServer) -> Iterator[Aftermath]:
    seconds, seed = (request.config.getoption(f"--{name}") for name in ("storm-seconds", "fault-seed"))
    folder = Path(tempfile.mkdtemp(prefix="trace-storm-"))
    try:
        with whole_system(folder, postgres) as system:
            storm = Storm(system, seed)
            with _clients(system, seconds) as clients:
                system.running.trace("trigger", "evm_quickstart", "backfill", "--range", f"0-{STORY.past - 1}")
                storm.rage(seconds)
                calls = _ended(clients)
            chain, lines, notified = drained(system)
            storm.log += notified
            seen = Seen(system, chain, calls)
            yield Aftermath(seen, storm, [storm.line(), *lines, *checked(seen)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_after_a_storm_rows_events_and_alerts_are_exactly_what_they_must_be(aftermath: Aftermath) -> None:
    print(aftermath.report())  # noqa: T201 - what a run is for
    assert wrong(aftermath.lines) == []


@contextmanager
def _rewritten(aftermath: Aftermath, change: Callable[[pa.Table], pa.Table]) -> Iterator[Seen]:
    """The first file of a dataset, with other rows."""
    running = aftermath.seen.system.running
    partition = running.get("/v1/datasets/past_blocks/files").json()["partitions"][0]
    place = Folder.parse(partition["location"]).object(partition["files"][0]["name"])
    file = running.home.root / "objects" / place.bucket / place.key
    rows, original = pq.read_table(file), file.read_bytes()
    pq.write_table(change(rows), file)
    try:
        yield aftermath.seen
    finally:
        file.write_bytes(original)


def _missing_row(aftermath: Aftermath) -> AbstractContextManager[Seen]:
    return _rewritten(aftermath, lambda rows: rows.slice(1))


def _doubled_row(aftermath: Aftermath) -> AbstractContextManager[Seen]:
    return _rewritten(aftermath, lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))


@contextmanager
def _lost_alert(aftermath: Aftermath) -> Iterator[Seen]:
    hook = aftermath.seen.system.hook
    lost = hook.deliveries[0]["delivery_id"]
    others = [delivery for delivery in hook.deliveries if delivery["delivery_id"] != lost]
    yield replace(aftermath.seen, system=replace(aftermath.seen.system, hook=replace(hook, deliveries=others)))


@contextmanager
def _alert_of_two_ids(aftermath: Aftermath) -> Iterator[Seen]:
    hook = aftermath.seen.system.hook
    more = [*hook.deliveries, {**hook.deliveries[0], "delivery_id": "another"}]
    yield replace(aftermath.seen, system=replace(aftermath.seen.system, hook=replace(hook, deliveries=more)))


@contextmanager
def _lost_event(aftermath: Aftermath) -> Iterator[Seen]:
    calls = aftermath.seen.calls
    yield replace(aftermath.seen, calls=replace(calls, events={**calls.events, "request": ["an event that is not"]}))


@contextmanager
def _failed_task(aftermath: Aftermath) -> Iterator[Seen]:
    with psycopg.connect(aftermath.seen.system.state_dsn, autocommit=True) as state:
        state.execute(REMEMBER_A_TASK)
        state.execute(FAIL_IT)
        try:
            yield aftermath.seen
        finally:
            state.execute(MEND_IT)


@pytest.mark.parametrize(
    ("spoil", "section", "check"),
    [
        (_missing_row, "datasets", "rows of past_blocks"),
        (_doubled_row, "datasets", "rows of past_blocks"),
        (_lost_alert, "alerts", "alerts due, alerts delivered"),
        (_alert_of_two_ids, "alerts", "alerts delivered under two ids"),
        (_lost_event, "calls", "accepted triggers with exactly one event"),
        (_failed_task, "tasks", "tasks failed for good"),
    ],
)
def test_the_table_shows_each_kind_of_wrong(
    aftermath: Aftermath, spoil: Callable[[Aftermath], AbstractContextManager[Seen]], section: str, check: str
) -> None:
    assert check not in {line.check for line in wrong(checked(aftermath.seen, section))}
    with spoil(aftermath) as spoiled:
        assert check in {line.check for line in wrong(checked(spoiled, section))}


@contextmanager
def _clients(system: WholeSystem, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """In a process of their own, so that a test that is busy does not make them slow."""
    ready = system.running.ready
    to = ready["endpoints"]["gateway"], ready["ca_file"], ready["user_token"]
    request = ClientRequest(*to, TRIGGERS, QUERIES, seconds + DRAIN_SECONDS)
    argv = program("storm_clients")
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdin is not None
        clients.stdin.write(json.dumps(asdict(request)))
        clients.stdin.close()
        try:
            yield clients
        finally:
            clients.kill()


def _ended(clients: subprocess.Popen[str]) -> Calls:
    assert clients.stdout is not None
    return Calls(**json.loads(clients.stdout.read()))
