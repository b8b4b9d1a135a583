"""Cron sources by EventBridge Scheduler: its schedule in moto, and its function with a real Dispatcher."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import pytest

from deploy.aws.fire import SECONDS, run
from deploy.aws.schedules import TIMEOUT_SECONDS
from tests.support import ROOT
from tests.support.aws.stack import REGION, Stack
from tests.support.identity.service_tokens import TOKENS
from tests.support.systems.caller import calling
from tests.support.systems.processes import ForkServer, System, a_system, url_of
from tests.support.waiting import until
from tracelake.errors import SetupError

pytestmark = pytest.mark.anyio
STACK = Stack.of()
DAG = """
name: desk
jobs:
  - {name: tick, operator: noop, runtime: dispatcher, source: {kind: cron, schedule: "* * * * *"}}
  - {name: after_tick, operator: noop, runtime: dispatcher, inputs: [{from: {job: tick}}]}
"""
DUE = """
    UPDATE source_schedules
       SET decided_until = date_trunc('minute', now()) - interval '2 minutes', due_at = now()"""
FIRED = "SELECT count(*) FROM source_slots WHERE reason IS NULL"
EVENTS = "SELECT count(*) FROM events e JOIN datasets d ON d.id = e.dataset_uuid WHERE d.producer_job_name = 'tick'"
DONE = """
    SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id
     WHERE j.name = 'after_tick' AND t.status = 'Completed'"""


@pytest.fixture
async def system(
    anyio_backend: str, fork_server: ForkServer, state_db: str, queue_db: str, tmp_path: Path
) -> AsyncIterator[System]:
    del anyio_backend
    async with a_system(fork_server, state_db, queue_db, tmp_path) as made:
        yield made


@pytest.fixture
def environment(moto: str, system: System) -> dict[str, str]:
    """What the template gives the function; the secret is what the setup stores."""
    prefix = f"t{uuid4().hex[:8]}"
    values = {"tls_ca": system.tls.ca.read_text(), "service_token": TOKENS["scheduler"]}
    secrets = boto3.client("secretsmanager", region_name=REGION, endpoint_url=moto)
    secrets.create_secret(Name=f"{prefix}/scheduler", SecretString=json.dumps(values))
    dispatcher = url_of(system.listeners[0][1])
    return {"AWS_REGION": REGION, "FIRE_ENDPOINT": moto, "FIRE_PREFIX": prefix, "FIRE_DISPATCHER": dispatcher}


async def test_functions_that_run_at_the_same_time_fire_each_slot_once(
    system: System, environment: dict[str, str]
) -> None:
    async with calling(system) as caller:
        system.dispatcher()
        await caller.activate("desk", await caller.deployed("desk", DAG))
        await system.pool.execute(DUE)
        functions = [asyncio.create_task(run(environment, 600)) for _ in range(3)]
        await until(lambda: _at_least(system, 2), "two slots have fired, with what is downstream")
        await system.pool.execute(DUE)  # decided again: a slot is stored once
        await system.pool.execute("NOTIFY trace_control, 'schedules'")
        await until(lambda: system.pool.fetchval("SELECT due_at > now() FROM source_schedules"), "all is decided")
        for function in functions:
            function.cancel()
        await asyncio.gather(*functions, return_exceptions=True)
    assert await system.pool.fetchval(EVENTS) == await system.pool.fetchval(FIRED) >= 2


async def test_a_function_ends_by_itself_before_lambda_ends_it(system: System, environment: dict[str, str]) -> None:
    system.dispatcher()
    await run(environment, 1.0)
    assert SECONDS + 20 < TIMEOUT_SECONDS == STACK.resource("FireFunction")["Timeout"]


async def test_without_a_setup_it_says_what_to_do(environment: dict[str, str], moto: str) -> None:
    prefix = f"t{uuid4().hex[:8]}"
    boto3.client("secretsmanager", region_name=REGION, endpoint_url=moto).create_secret(Name=f"{prefix}/scheduler")
    with pytest.raises(SetupError, match=f"{prefix}/scheduler") as refused:
        await run({**environment, "FIRE_PREFIX": prefix}, 1.0)
    assert "run the setup" in str(refused.value.hint)


def test_eventbridge_accepts_the_schedule_and_calls_the_function_by_the_role_that_may(moto: str) -> None:
    schedule, group = STACK.resource("FireSchedule"), f"t{uuid4().hex[:8]}"
    client = boto3.client("scheduler", region_name=REGION, endpoint_url=moto)
    client.create_schedule_group(Name=group)
    client.create_schedule(**{**schedule, "GroupName": group})
    found = client.get_schedule(Name=schedule["Name"], GroupName=group)
    assert (found["ScheduleExpression"], found["State"]) == ("rate(1 minute)", "ENABLED")
    assert found["Target"]["Arn"] == STACK.arn("FireFunction")
    assert found["Target"]["RoleArn"] == STACK.arn("ScheduleRole")
    assert found["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 0
    (allowed,) = (statement for policy in STACK.rights("ScheduleRole") for statement in policy["Statement"])
    assert allowed == {"Effect": "Allow", "Action": ["lambda:InvokeFunction"], "Resource": [STACK.arn("FireFunction")]}


def test_the_function_is_what_its_handler_names_with_what_it_reads_in_its_variables() -> None:
    properties: dict[str, Any] = STACK.resource("FireFunction")
    module, _, name = properties["ImageConfig"]["Command"][0].rpartition(".")
    assert f"def {name}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()
    assert properties["Environment"]["Variables"] == {
        "FIRE_PREFIX": "trace",
        "FIRE_DISPATCHER": "https://dispatcher.trace.internal:8445",
    }
    assert "COPY deploy /opt/trace/deploy" in (ROOT / "Dockerfile").read_text()


async def _at_least(system: System, slots: int) -> bool:
    return int(await system.pool.fetchval(DONE)) >= slots
