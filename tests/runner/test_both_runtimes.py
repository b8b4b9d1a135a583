"""The same code on `lambda` and on `ecs_udf`: the same rows, the same ends, the same words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from tests.runner.rig import SECONDS
from tests.runner.whole import RUNTIMES, Whole, a_whole, serving
from tests.spark_session import shared_session
from tests.support.postgres import RunningServer
from tracelake.dispatcher.tasks.cancel import cancel_task
from tracelake.store.migrate import Database
from tracelake.udf.invoke import Functions
from tracelake.udf.sandbox import runs

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("runtime", RUNTIMES)]

DATABASES: tuple[Database, ...] = ("state", "queue", "data")


@pytest.fixture(scope="module")
async def whole(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Whole]:
    dsns: dict[str, str] = {
        name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in DATABASES
    }
    async with a_whole(dsns, tmp_path_factory.mktemp("both"), shared_session()) as made:
        yield made


@pytest.fixture(scope="module")
async def functions(whole: Whole) -> AsyncIterator[Functions]:
    async with serving(whole) as made:
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


async def test_what_it_publishes_becomes_rows(whole: Whole, runtime: str) -> None:
    name = await whole.deployed(PUBLISH, runtime)
    first, second = await whole.ran(name), await whole.ran(name)
    assert (first["status"], second["status"]) == ("Completed", "Completed"), (first, second)
    assert await whole.rows(name) == [("a", 1), ("b", 2)]


async def test_more_tasks_than_sandboxes_wait_for_their_place_and_none_of_them_loses_an_attempt(
    whole: Whole, runtime: str
) -> None:
    slow = PUBLISH.replace("    task.log", "    import time\n    time.sleep(0.5)\n    task.log")
    name = await whole.deployed(slow, runtime, attempts=1)
    tasks = [await whole.asked(name) for _ in range(3 * whole.settings.udf.per_org)]
    ended = [await whole.over(task) for task in tasks]
    assert {(row["status"], row["attempt"]) for row in ended} == {("Completed", 1)}, ended


async def test_what_it_says_is_kept_for_people(whole: Whole, runtime: str) -> None:
    task = await whole.asked(await whole.deployed(PUBLISH, runtime))
    await whole.over(task)
    async with asyncio.timeout(SECONDS):
        while len(lines := await whole.lines(task)) < 2:  # noqa: ASYNC110 - the runner's work is waited for
            await asyncio.sleep(0.02)
    assert sorted(lines) == [("info", "and prints"), ("warning", "says hello")]


async def test_what_it_raises_fails_the_attempt_and_is_tried_again(whole: Whole, runtime: str) -> None:
    code = "from trace_udf import udf\n@udf\ndef handler(task):\n    raise ValueError('no such luck')\n"
    row = await whole.ran(await whole.deployed(code, runtime))
    assert (row["status"], row["attempt"]) == ("Failed", 2)
    assert "ValueError: no such luck" in row["error_message"]


async def test_what_is_final_is_not_tried_again(whole: Whole, runtime: str) -> None:
    code = "from trace_udf import Final, udf\n@udf\ndef handler(task):\n    raise Final('never')\n"
    row = await whole.ran(await whole.deployed(code, runtime))
    assert (row["status"], row["attempt"]) == ("Failed", 1)
    assert "never" in row["error_message"]


async def test_code_that_cannot_be_loaded_fails_with_the_reason(whole: Whole, runtime: str) -> None:
    row = await whole.ran(await whole.deployed("import no_such_module\n", runtime, attempts=1))
    assert row["status"] == "Failed"
    assert "no_such_module" in row["error_message"]


async def test_a_handler_that_reports_nothing_useful_fails_with_the_reason(whole: Whole, runtime: str) -> None:
    code = "def handler(event, context): return {'status': 'Splendid'}\n"
    row = await whole.ran(await whole.deployed(code, runtime, attempts=1))
    assert row["status"] == "Failed"
    expected = {"lambda": "without completing", "ecs_udf": "cannot be reported"}
    assert expected[runtime] in row["error_message"]


async def test_it_cannot_complete_another_task(whole: Whole, runtime: str) -> None:
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
    row = await whole.ran(await whole.deployed(code, runtime, attempts=1))
    assert row["status"] == "Completed", row["error_message"]


async def test_credentials_of_the_task_are_in_its_hands(whole: Whole, runtime: str) -> None:
    """The disk store's are the folders; minted by the wrapper, or asked for by the function itself."""
    code = """
        from trace_udf import udf
        @udf
        def handler(task):
            found = task.credentials()
            assert found["kind"] == "mounts", found
            assert found["write"], found
        """
    row = await whole.ran(await whole.deployed(code, runtime, attempts=1))
    assert row["status"] == "Completed", row["error_message"]


FOREVER = """
import time
from helpers import *
def handler(event, context):
    task(event, "heartbeat", progress={"message": "here"})
    while True:
        time.sleep(0.05)
"""


async def test_a_canceled_task_ends_its_sandbox(whole: Whole, functions: Functions, runtime: str) -> None:
    task = await whole.asked(await whole.deployed(FOREVER, runtime, attempts=1, lease=4))
    await whole.until(task, "progress IS NOT NULL")
    first = running_first(functions)
    await cancel_task(whole.walk.control, whole.walk.org.id, task, "enough")
    assert (await whole.over(task))["status"] == "Canceled"
    await ended(first)


async def test_a_lease_that_is_lost_ends_its_sandbox(whole: Whole, functions: Functions, runtime: str) -> None:
    task = await whole.asked(await whole.deployed(FOREVER, runtime, attempts=1, lease=4))
    await whole.until(task, "progress IS NOT NULL")
    first = running_first(functions)
    await whole.walk.control.pool.execute("UPDATE tasks SET lease_token = gen_random_uuid() WHERE id = $1", task)
    assert (await whole.over(task))["status"] == "Failed"
    await ended(first)


async def test_a_task_that_takes_too_long_is_ended(whole: Whole, functions: Functions, runtime: str) -> None:
    task = await whole.asked(await whole.deployed(FOREVER, runtime, attempts=1, seconds=4, lease=4))
    await whole.until(task, "progress IS NOT NULL")
    first = running_first(functions)
    assert (await whole.over(task))["status"] == "Failed"
    await ended(first)


def running_first(functions: Functions) -> int:
    """The first process of the one sandbox that is busy."""
    (host,) = [host for host in functions.pool._busy if host._in_hand is not None]
    assert host._sandbox is not None
    return host._sandbox._first


async def ended(first: int) -> None:
    async with asyncio.timeout(SECONDS):
        while runs(first):  # noqa: ASYNC110 - the kernel's work is waited for
            await asyncio.sleep(0.02)
