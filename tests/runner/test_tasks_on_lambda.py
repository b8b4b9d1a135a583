"""Tasks of `runtime: lambda` from a Dispatcher to the runner function: what costs an attempt, and what does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.aws.faulty_aws import Refusal
from tests.support.aws.lambda_server import LambdaServer
from tests.support.systems.invokers import lambda_of_the_runner
from tests.support.systems.on_s3 import on_s3
from tests.support.systems.udf import DAG, FunctionSystem, udf_on_lambda
from tests.support.verbs import cancel_task
from tests.support.waiting import until
from tracelake.domain.access.object_names import ObjectName
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake.sandbox.process import runs
from tracelake.store.migrate import Database

pytestmark = pytest.mark.anyio

Clone = Callable[[Database], str]
PUBLISHES = """
from trace_udf import udf

@udf
def handler(task):
    task.publish([{"id": "a", "amount": 1}, {"id": "b", "amount": 2}])
"""
LOGS = """
from trace_udf import udf

@udf
def handler(task):
    task.log.info("runs")
"""
WAITS = """
import os, time
from helpers import *

def handler(event, context):
    task(event, "heartbeat", progress={"message": str(os.getpid())})
    while True:
        time.sleep(0.05)
"""
"""It never calls the task API again, and catches nothing."""
BEATS = DAG.replace("    max_attempts", "    heartbeat_interval_seconds: 1s\n    max_attempts")


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


async def test_the_code_of_a_canceled_task_is_ended_by_the_function(system: FunctionSystem) -> None:
    task = await system.asked(await system.deployed(WAITS, "lambda", attempts=1, dag=BEATS))
    code = await running_code(system, task)
    await cancel_task(system.walk.control, system.walk.org.id, task, "enough")
    assert (await system.over(task))["status"] == "Canceled"
    await until(lambda: not runs(code), "the code has ended")


async def test_the_code_of_an_attempt_that_lost_its_lease_is_ended_by_the_function(system: FunctionSystem) -> None:
    task = await system.asked(await system.deployed(WAITS, "lambda", attempts=1, dag=BEATS))
    code = await running_code(system, task)
    await system.walk.control.pool.execute("UPDATE tasks SET lease_token = gen_random_uuid() WHERE id = $1", task)
    await until(lambda: not runs(code), "the code has ended")


async def test_code_from_s3_publishes_rows_to_s3(
    clone: Clone, tmp_path: Path, server: LambdaServer, seaweedfs: SeaweedFS
) -> None:
    """Its bundle by a URL that the store's own keys sign, its rows with keys of its task."""
    dsns, s3 = {"state": clone("state"), "queue": clone("queue")}, on_s3(seaweedfs, tmp_path)
    async with udf_on_lambda(dsns, tmp_path, server, s3) as system:
        row = await system.ran(await system.deployed(PUBLISHES, "lambda", attempts=1))
        assert (row["status"], row["platform_failures"]) == ("Completed", 0), row["error_message"]
        (batch,) = await system.fetch("SELECT batch_uri FROM buffer_publishes WHERE task_id = $1", row["id"])
        rows = system.walk.control.objects.get(ObjectName.parse(batch["batch_uri"])).splitlines()
        assert sorted(json.loads(line)["id"] for line in rows) == ["a", "b"]
    assert len(server.calls) == 1


async def running_code(system: FunctionSystem, task: UUID) -> int:
    """Its process, which nothing but its runner ends before its time limit of 2000 s."""
    row = await system.until_task(task, "progress IS NOT NULL")
    code = int(row["progress"]["message"])
    assert runs(code)
    return code
