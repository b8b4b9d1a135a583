"""kill -9 of the runner while code runs: nothing is left of it, the attempt is tried again, and rows are there once."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.child_process import trace_process
from tests.support.spark.session import shared_session
from tests.support.systems.sink_alerts import STANDARD
from tests.support.systems.udf import DAG, RUNTIMES, UdfSystem, udf_system
from tests.support.waiting import SECONDS, until
from tracelake.dispatcher.alerts.edit import create_alert
from tracelake.dispatcher.runtimes import call_functions
from tracelake.domain.crash_points import POINTS
from tracelake.sandbox.process import process_tree, runs
from tracelake.settings.telemetry import FaultSettings
from tracelake.store.identity import find_user
from tracelake.wire.user.alerts import AlertRequest

pytestmark = pytest.mark.anyio

# Where it is when the runner dies: before anything was published, after it, and when all but the end was said.
CODE = """
import time
from helpers import task as report
from trace_udf import udf

@udf
def handler(task):
    first = task.attempt == 1
    if first and PLACE == "before":
        report(task.event, "heartbeat", progress={"message": "here"})
        time.sleep(3600)
    task.publish([{"id": "a", "amount": 1}, {"id": "b", "amount": 2}])
    task.flush()
    if first and PLACE == "after":
        report(task.event, "heartbeat", progress={"message": "here"})
        time.sleep(3600)
"""


@pytest.fixture(scope="module")
async def system(udf_dsns: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UdfSystem]:
    with pytest.MonkeyPatch.context() as patch:
        # It is missing a dozen times here: how long a Dispatcher then waits would be most of the test.
        patch.setattr(call_functions, "AWAY_SECONDS", (0.1, 0.5))
        async with udf_system(udf_dsns, tmp_path_factory.mktemp("udf"), shared_session()) as made:
            yield made


@contextmanager
def a_runner(system: UdfSystem, log: Path, point: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """`trace runner`, as `trace up` starts it; it does not survive the point.

    And as `trace up` ends it: with its session, for what it had not locked in yet when it died. All others must go by
    themselves.
    """
    settings = system.settings.model_copy(update={"faults": FaultSettings(point=point)})
    with trace_process("runner", settings, log) as process:
        yield process


async def listens(system: UdfSystem) -> None:
    async def accepts() -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", system.settings.udf.port)
        writer.close()
        return True

    await until(accepts, "the runner accepts connections", ignoring=(OSError,))


async def test_nothing_is_left_of_a_killed_runner_and_rows_are_there_once(system: UdfSystem, tmp_path: Path) -> None:
    places = [(runtime, place) for runtime in RUNTIMES for place in ("before", "after")]
    names = [
        await system.deployed(CODE.replace("PLACE", repr(place)), runtime, lease=4, attempts=5)
        for runtime, place in places
    ]
    log = tmp_path / "log"
    with a_runner(system, log) as runner:
        await listens(system)
        tasks = [await system.asked(name) for name in names]
        for task in tasks:
            await system.until_task(task, "progress IS NOT NULL")
        left = process_tree(runner.pid)
        assert len(left) > 6, log.read_text()
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    await gone(left)
    with a_runner(system, log):
        rows = [await system.over(task) for task in tasks]
        assert [row["status"] for row in rows] == ["Completed"] * len(tasks), (rows, log.read_text())
        for name in names:
            assert await system.rows(name) == [("a", 1), ("b", 2)]


ALERTING = DAG[: DAG.index("publish:")].replace(
    "operator: udf", "operator: alert_evaluate\n    config: {{definitions: [whales]}}"
) + STANDARD.replace("{", "{{").replace("}", "}}").replace("alert_events", "{name}_rows")
ALERTS = """
import time
from datetime import datetime, timezone
from helpers import task as report
from trace_udf import udf

@udf
def handler(task):
    (whales,), (output,) = task.alerts, task.event["outputs"]
    when = datetime(2026, 1, 31, tzinfo=timezone.utc)
    for place in range(3):
        task.alert(whales, dedupe_key=f"k{place}", event_time=when, dataset=output["name"])
        task.flush()
        if task.attempt == 1 and place == 1:
            report(task.event, "heartbeat", progress={"message": "here"})
            time.sleep(3600)
"""


async def test_alerts_that_were_raised_before_the_runner_was_killed_are_there_once(
    system: UdfSystem, tmp_path: Path
) -> None:
    user = await find_user(system.walk.control.pool, "test|acme")
    assert user is not None
    alert = await create_alert(
        system.walk.control.pool, user, AlertRequest(name="whales", severity="critical", channels=[])
    )
    names = [await system.deployed(ALERTS, runtime, lease=4, attempts=5, dag=ALERTING) for runtime in RUNTIMES]
    log = tmp_path / "log"
    with a_runner(system, log) as runner:
        await listens(system)
        tasks = [await system.asked(name) for name in names]
        for task in tasks:
            await system.until_task(task, "progress IS NOT NULL")
        left = process_tree(runner.pid)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    await gone(left)
    with a_runner(system, log):
        rows = [await system.over(task) for task in tasks]
        assert {row["status"] for row in rows} == {"Completed"}, (rows, log.read_text())
        assert all(row["attempt"] > 1 for row in rows)
    own = str(alert.alert_definition_id)
    for name in names:
        assert await system.rows(name, "dedupe_key, alert_definition_id") == [(f"k{place}", own) for place in range(3)]
    sent = "SELECT attempt, count(*) AS n FROM buffer_publishes WHERE task_id = ANY ($1) GROUP BY 1"
    published = {row["attempt"]: row["n"] for row in await system.sink.fetch(sent, tasks)}
    assert published[1] == 2 * len(RUNTIMES), "what was raised before the kill was on its way"


ROW = """
from trace_udf import udf

@udf
def handler(task):
    task.publish([{"id": task.id, "amount": 1}])
    task.progress(1, 1)
"""
MOST_TRIES = 50
AT_RUNNER = [item for item in POINTS if item.startswith("runner.")]
AT_WRAPPER = [item for item in POINTS if item.startswith("run_udf.")]
HIT = {
    # Warm sandboxes are of `lambda`; what keeps the lease of its own, and ends the sandbox with the task, of `ecs_udf`.
    "lambda": [item for item in AT_RUNNER if item != "runner.sandbox_killed"],
    # Bundles are fetched for both alike.
    "ecs_udf": [item for item in AT_RUNNER if item != "runner.recycled" and "bundle" not in item] + AT_WRAPPER,
}


def test_every_point_of_the_runner_is_hit_on_some_runtime() -> None:
    assert {*HIT["lambda"], *HIT["ecs_udf"]} == {*AT_RUNNER, *AT_WRAPPER}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_runner_killed_at_any_point_loses_nothing_and_doubles_nothing(
    system: UdfSystem, tmp_path: Path, runtime: str
) -> None:
    log, name, tasks = tmp_path / "log", await system.deployed(ROW, runtime, lease=4, attempts=40), []
    for point in HIT[runtime]:
        if point.startswith("runner.bundle"):
            shutil.rmtree(system.settings.home / "cache" / "udf", ignore_errors=True)
        tasks.append(await system.asked(name))
        await gone(await killed(system, log, point))
    with a_runner(system, log) as runner:
        rows = [await system.over(task) for task in tasks]
        assert {row["status"] for row in rows} == {"Completed"}, (rows, log.read_text())
        assert await system.rows(name) == sorted((str(task), 1) for task in tasks)
        left = process_tree(runner.pid)
        runner.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(runner.wait, SECONDS) == 0, log.read_text()
    await gone(left)
    assert not list((system.settings.home / "run" / "udf").iterdir()), "what a killed runner left, the next one removes"
    (published,) = await system.sink.fetch("SELECT count(*) AS n FROM buffer_publishes")
    counts = "SELECT count(*) AS n, count(DISTINCT cursor_value) AS apart FROM events WHERE origin = 'sink'"
    (events,) = await system.sink.fetch(counts)
    assert (events["n"], events["apart"]) == (published["n"], published["n"])


async def killed(system: UdfSystem, log: Path, point: str) -> Sequence[int]:
    """A runner that came to the point; the processes that it had."""
    left: Sequence[int] = ()
    while True:
        with a_runner(system, log, point) as runner:
            while runner.poll() is None:
                left = process_tree(runner.pid) or left
                await asyncio.sleep(0.01)
        output = await asyncio.to_thread(log.read_text)
        if runner.returncode == -signal.SIGKILL:
            assert f"crash point {point}: SIGKILL" in output
            return left
        assert output.count("Address already in use") < MOST_TRIES, (point, output)
        assert "Address already in use" in output, (point, output)  # by another test, for a moment


async def gone(left: Sequence[int]) -> None:
    await until(lambda: not any(runs(pid) for pid in left), "the processes have ended")


async def test_a_runner_that_is_asked_to_stop_leaves_nothing(system: UdfSystem, tmp_path: Path) -> None:
    name = await system.deployed(CODE.replace("PLACE", "''"), "lambda")
    log = tmp_path / "log"
    with a_runner(system, log) as runner:
        assert (await system.ran(name))["status"] == "Completed", log.read_text()
        left = process_tree(runner.pid)
        runner.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(runner.wait, SECONDS) == 0, log.read_text()
    assert not [pid for pid in left if runs(pid)]
    assert not list((system.settings.home / "run" / "udf").iterdir())
