"""Tasks of `runtime: lambda` from a Dispatcher to the runner function: what costs an attempt, and what does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.support.faulty_aws import Refusal
from tests.support.lambda_server import LambdaServer
from tests.support.systems.invokers import lambda_of_the_runner
from tests.support.systems.udf import FunctionSystem, udf_on_lambda
from tests.support.waiting import until
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio

Clone = Callable[[Database], str]
LOGS = """
from trace_udf import udf

@udf
def handler(task):
    task.log.info("runs")
"""
WAITS = """
import time
from trace_udf import udf

@udf
def handler(task):
    task.progress(message="here")
    while True:
        time.sleep(0.05)
"""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LambdaServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    async with lambda_of_the_runner() as made:
        yield made


@pytest.fixture
async def system(
    clone: Callable[[Database], str], tmp_path: Path, server: LambdaServer
) -> AsyncIterator[FunctionSystem]:
    async with udf_on_lambda({"state": clone("state"), "queue": clone("queue")}, tmp_path, server) as made:
        yield made


async def test_a_task_runs_once_on_lambda_after_throttling_that_costs_no_attempt(
    system: FunctionSystem, server: LambdaServer
) -> None:
    server.refuse(Refusal("TooManyRequestsException", 429, "Rate Exceeded."), times=2)
    task = await system.asked(await system.deployed(LOGS, "lambda", attempts=1))
    row = await system.over(task)
    assert (row["status"], row["attempt"], row["platform_failures"]) == ("Completed", 1, 0)
    assert len(server.calls) == 3
    assert [call.tenant for call in server.calls] == [str(system.walk.org.id)] * 3
    assert await until(lambda: system.lines(task), "its line is stored") == [("info", "runs")]


async def test_a_function_that_is_missing_costs_no_attempt(system: FunctionSystem, server: LambdaServer) -> None:
    server.refuse(Refusal("ResourceNotFoundException", 404, "Function not found"), times=1)
    row = await system.ran(await system.deployed(LOGS, "lambda", attempts=1))
    assert (row["status"], row["attempt"]) == ("Completed", 1)


async def test_an_answer_that_is_lost_does_not_count_against_the_attempts(
    system: FunctionSystem, server: LambdaServer
) -> None:
    server.refuse(Refusal("ServiceException", 500), times=1)
    task = await system.asked(await system.deployed(LOGS, "lambda", attempts=2))
    row = await system.over(task)
    assert (row["status"], row["platform_failures"]) == ("Completed", 1)
    assert len(server.calls) == 2


async def test_what_lambda_will_never_take_fails_for_good_at_the_first_attempt(
    system: FunctionSystem, server: LambdaServer
) -> None:
    server.refuse(Refusal("RequestTooLargeException", 413))
    row = await system.ran(await system.deployed(LOGS, "lambda", attempts=2))
    assert (row["status"], row["attempt"]) == ("Failed", 1)
    assert "Lambda takes 6291456" in row["error_message"]
    assert len(server.calls) == 1


async def test_a_task_that_takes_too_long_is_ended(system: FunctionSystem) -> None:
    row = await system.ran(await system.deployed(WAITS, "lambda", attempts=1, seconds=3, lease=4))
    assert row["status"] == "Failed"
