"""What an invoker guarantees, shown of the local runner and of the runner as a function of Lambda."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.support.operators import registered
from tests.support.postgres import RunningServer
from tests.support.systems.invokers import Invoking, lambda_of_the_runner, on_lambda, on_runner
from tests.support.systems.runner import HANDS, RunnerSystem, running_system
from tracelake.ports import Invoked
from tracelake.store.migrate import Database
from tracelake.wire.task.lifecycle import UdfRef

pytestmark = pytest.mark.anyio

DATABASES: tuple[Database, ...] = ("state", "queue")
COMPLETES = """
    from helpers import complete
    def handler(event, context):
        print("runs")
        return complete(event)
    """
RAISES = """
    def handler(event, context):
        print("runs")
        raise KeyError("no such thing")
    """
HOLDS = """
    import time
    from helpers import task
    def handler(event, context):
        while task(event, "heartbeat", progress={"message": "here"})[0] == 200:
            time.sleep(0.05)
    """
"""Runs until it has lost its lease."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def system(
    postgres: RunningServer, template: Callable[[Database], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunnerSystem]:
    names: tuple[Database, ...] = ("state", "queue")
    dsns: dict[str, str] = {
        name: postgres.create_database(f"{name}_{uuid4().hex[:12]}", template(name)) for name in names
    }
    with registered(hands=HANDS):
        more: dict[str, Any] = {"memory_mb": 256, "tmp_mb": 16, "per_org": 2, "wait_seconds": 0.1}
        async with running_system(dsns, tmp_path_factory.mktemp("invoker"), **more) as made:
            yield made


@pytest.fixture(scope="module", params=["runner", "lambda"])
async def invoking(request: pytest.FixtureRequest, system: RunnerSystem) -> AsyncIterator[Invoking]:
    if request.param == "runner":
        async with on_runner(system) as made:
            yield made
        return
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "testing")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        async with lambda_of_the_runner() as server, on_lambda(system, server) as made:
            yield made


async def test_a_function_runs_once_with_its_task_and_its_own_report_is_what_counts(invoking: Invoking) -> None:
    claimed = await invoking.system.claimed()
    assert await invoking.call(invoking.system.python(COMPLETES), claimed) == Invoked()
    assert await invoking.system.status(claimed.task.task_id) == "Completed"
    assert (await invoking.logged(claimed)).count("runs") == 1


async def test_a_function_that_raises_has_run_and_is_not_called_again(invoking: Invoking) -> None:
    claimed = await invoking.system.claimed()
    ended = await invoking.call(invoking.system.python(RAISES), claimed)
    assert (ended.started, ended.lost, ended.refused) == (True, False, False)
    assert "KeyError" in str(ended.error)
    assert "no such thing" in str(ended.error)
    assert (await invoking.logged(claimed)).count("runs") == 1
    assert await invoking.system.status(claimed.task.task_id) == "Running"


async def test_code_that_cannot_be_loaded_is_a_failure_of_the_code(invoking: Invoking) -> None:
    ended = await invoking.call(invoking.system.python("import no_such_module"))
    assert (ended.started, ended.lost) == (True, False)
    assert "no_such_module" in str(ended.error)


async def test_a_function_is_ended_at_the_time_limit_of_its_task(invoking: Invoking) -> None:
    ended = await invoking.call(invoking.system.python(HOLDS), timeout_seconds=2)
    assert (ended.started, ended.lost) == (True, False)
    assert "timed out after 2" in str(ended.error)


async def test_a_bundle_with_another_hash_never_runs(invoking: Invoking) -> None:
    system, claimed = invoking.system, await invoking.system.claimed()
    udf = new_bundle(system)
    system.bundles.archives[udf.sha256] = system.bundles.archives[udf.sha256][:-1] + b"x"
    ended = await invoking.call(udf, claimed)
    assert "hash of the bundle" in str(ended.error)
    assert await invoking.logged(claimed) == []


async def test_a_bundle_that_cannot_be_fetched_is_no_attempt(invoking: Invoking) -> None:
    claimed, udf = await invoking.system.claimed(), new_bundle(invoking.system)
    away = {name: getattr(udf, name) for name in udf.__struct_fields__} | {"url": "http://127.0.0.1:1/away"}
    ended = await invoking.call(type(udf)(**away), claimed)
    assert (ended.started, ended.busy, ended.refused) == (False, False, False)
    assert "cannot be fetched" in str(ended.error)


async def test_without_a_free_place_nothing_has_started(invoking: Invoking) -> None:
    system, holds = invoking.system, invoking.system.python(HOLDS)
    tasks = [await system.claimed() for _ in range(invoking.places)]
    running = [asyncio.create_task(invoking.call(holds, claimed)) for claimed in tasks]
    for claimed in tasks:
        await system.until("SELECT progress IS NOT NULL FROM tasks WHERE id = $1", claimed.task.task_id)
    waits = await system.claimed()
    ended = await invoking.call(system.python(COMPLETES), waits)
    assert (ended.started, ended.busy) == (False, True), ended
    assert await invoking.logged(waits) == []
    for claimed in tasks:
        take = "UPDATE tasks SET lease_token = gen_random_uuid() WHERE id = $1 RETURNING true"
        assert await system.fetch(take, claimed.task.task_id)
    for ended in await asyncio.gather(*running):  # it has ended itself, or was ended first
        assert (ended.started, ended.lost, ended.refused) == (True, False, False), ended


async def test_a_task_that_is_too_large_will_never_start(invoking: Invoking) -> None:
    ended = await invoking.call(invoking.system.python(COMPLETES), config={"text": "x" * (6 * 1024 * 1024)})
    assert (ended.started, ended.refused) == (False, True), ended


def new_bundle(system: RunnerSystem) -> UdfRef:
    """One that no runner has fetched yet."""
    return system.python(f"{COMPLETES}\n    # {uuid4()}")
