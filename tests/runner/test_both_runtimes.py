"""The same code on `lambda` and on `ecs_udf`: the same rows, the same ends, the same words."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.spark.session import shared_session
from tests.support.systems.udf import RUNTIMES, UdfSystem, serving, udf_system
from tests.support.verbs import cancel_task
from tests.support.waiting import until
from tracelake.sandbox.process import runs
from tracelake.udf.invoke import Functions

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("runtime", RUNTIMES)]


@pytest.fixture(scope="module")
async def system(udf_dsns: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UdfSystem]:
    async with udf_system(udf_dsns, tmp_path_factory.mktemp("udf"), shared_session()) as made:
        yield made


@pytest.fixture(scope="module")
async def functions(system: UdfSystem) -> AsyncIterator[Functions]:
    async with serving(system) as made:
        yield made


@pytest.fixture(autouse=True)
def _served(functions: Functions) -> None:
    del functions


PUBLISH = """
from trace_udf import udf

@udf
def handler(task):
    task.log.warning("says hello")
    print("and prints")
    task.publish([{"id": "a", "amount": 1}, {"id": "b", "amount": 2}])
"""


async def test_what_it_publishes_becomes_rows(system: UdfSystem, runtime: str) -> None:
    name = await system.deployed(PUBLISH, runtime)
    first, second = await system.ran(name), await system.ran(name)
    assert (first["status"], second["status"]) == ("Completed", "Completed"), (first, second)
    assert await system.rows(name) == [("a", 1), ("b", 2)]


async def test_more_tasks_than_sandboxes_wait_for_their_place_and_none_of_them_loses_an_attempt(
    system: UdfSystem, runtime: str
) -> None:
    slow = PUBLISH.replace("    task.log", "    import time\n    time.sleep(0.5)\n    task.log")
    name = await system.deployed(slow, runtime, attempts=1)
    tasks = [await system.asked(name) for _ in range(3 * system.settings.udf.per_org)]
    ended = [await system.over(task) for task in tasks]
    assert {(row["status"], row["attempt"]) for row in ended} == {("Completed", 1)}, ended


async def test_what_it_logs_is_stored_for_users(system: UdfSystem, runtime: str) -> None:
    task = await system.asked(await system.deployed(PUBLISH, runtime))
    await system.over(task)

    async def two_lines() -> list[tuple[str, str]] | None:
        lines = await system.lines(task)
        return lines if len(lines) >= 2 else None

    lines = await until(two_lines, "two lines are logged")
    assert sorted(lines) == [("info", "and prints"), ("warning", "says hello")]


async def test_what_it_raises_fails_the_attempt_and_is_tried_again(system: UdfSystem, runtime: str) -> None:
    code = "from trace_udf import udf\n@udf\ndef handler(task):\n    raise ValueError('no such luck')\n"
    row = await system.ran(await system.deployed(code, runtime))
    assert (row["status"], row["attempt"]) == ("Failed", 2)
    assert "ValueError: no such luck" in row["error_message"]


async def test_what_is_final_is_not_tried_again(system: UdfSystem, runtime: str) -> None:
    code = "from trace_udf import Final, udf\n@udf\ndef handler(task):\n    raise Final('never')\n"
    row = await system.ran(await system.deployed(code, runtime))
    assert (row["status"], row["attempt"]) == ("Failed", 1)
    assert "never" in row["error_message"]


async def test_code_that_cannot_be_loaded_fails_with_the_reason(system: UdfSystem, runtime: str) -> None:
    row = await system.ran(await system.deployed("import no_such_module\n", runtime, attempts=1))
    assert row["status"] == "Failed"
    assert "no_such_module" in row["error_message"]


async def test_a_handler_that_reports_nothing_useful_fails_with_the_reason(system: UdfSystem, runtime: str) -> None:
    code = "def handler(event, context): return {'status': 'Splendid'}\n"
    row = await system.ran(await system.deployed(code, runtime, attempts=1))
    assert row["status"] == "Failed"
    expected = {"lambda": "without completing", "ecs_udf": "cannot be reported"}
    assert expected[runtime] in row["error_message"]


async def test_it_cannot_complete_another_task(system: UdfSystem, runtime: str) -> None:
    """Nor heartbeat it, or publish for it: the token and the fence are its own."""
    code = """
        from helpers import *
        def handler(event, context):
            other = {**event, "task_id": "00000000-0000-4000-8000-000000000000"}
            got = [task(other, verb, **more)[0] for verb, more in
                   (("heartbeat", {}), ("complete", {"status": "Completed"}), ("events", {}))]
            assert set(got) <= {403, 404, 409}, got
            if event["completes"] == "function":
                complete(event)
            return None
        """
    row = await system.ran(await system.deployed(code, runtime, attempts=1))
    assert row["status"] == "Completed", row["error_message"]


async def test_a_function_gets_the_credentials_of_its_task(system: UdfSystem, runtime: str) -> None:
    """The disk store's are the folders; minted by the wrapper, or requested by the function itself."""
    code = """
        from trace_udf import udf
        @udf
        def handler(task):
            found = task.credentials()
            assert found["kind"] == "mounts", found
            assert found["write"], found
        """
    row = await system.ran(await system.deployed(code, runtime, attempts=1))
    assert row["status"] == "Completed", row["error_message"]


FOREVER = """
import time
from helpers import *
def handler(event, context):
    task(event, "heartbeat", progress={"message": "here"})
    while True:
        time.sleep(0.05)
"""


async def test_a_canceled_task_ends_its_sandbox(system: UdfSystem, functions: Functions, runtime: str) -> None:
    task = await system.asked(await system.deployed(FOREVER, runtime, attempts=1, lease=4))
    await system.until_task(task, "progress IS NOT NULL")
    first = running_first(functions)
    await cancel_task(system.walk.control, system.walk.org.id, task, "enough")
    assert (await system.over(task))["status"] == "Canceled"
    await ended(first)


async def test_a_lease_that_is_lost_ends_its_sandbox(system: UdfSystem, functions: Functions, runtime: str) -> None:
    task = await system.asked(await system.deployed(FOREVER, runtime, attempts=1, lease=4))
    await system.until_task(task, "progress IS NOT NULL")
    first = running_first(functions)
    await system.walk.control.pool.execute("UPDATE tasks SET lease_token = gen_random_uuid() WHERE id = $1", task)
    assert (await system.over(task))["status"] == "Failed"
    await ended(first)


async def test_a_task_that_takes_too_long_is_ended(system: UdfSystem, functions: Functions, runtime: str) -> None:
    task = await system.asked(await system.deployed(FOREVER, runtime, attempts=1, seconds=4, lease=4))
    await system.until_task(task, "progress IS NOT NULL")
    first = running_first(functions)
    assert (await system.over(task))["status"] == "Failed"
    await ended(first)


def running_first(functions: Functions) -> int:
    """The first process of the one sandbox that is busy."""
    (host,) = [host for host in functions.pool._busy if host._current is not None]
    assert host._sandbox is not None
    return host._sandbox._first


async def ended(first: int) -> None:
    await until(lambda: not runs(first), "the process has ended")
