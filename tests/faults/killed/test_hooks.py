"""Dispatchers die while deliveries arrive, are fired and are released: each counts once, and none that was answered is
lost.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from tests.support.faults.deaths import dies_at
from tests.support.identity.hook_signatures import sign
from tests.support.systems.caller import Caller, calling
from tests.support.systems.processes import System
from tests.support.waiting import until
from tracelake.domain.sources.signatures import HookScheme

pytestmark = pytest.mark.anyio

SECRET = "a_secret_of_the_fault_tests"
DAG = """
name: desk
jobs:
  - {name: load, operator: works, runtime: ecs_platform, source: {kind: webhook, scheme: hmac, secret: KEY}}
"""
KEYS = {"key": SECRET}
HOOK = "/internal/hooks"
OK = 200


async def deploy(caller: Caller) -> None:
    await caller.activate("desk", await caller.deployed("desk", DAG))


def batch(number: int) -> dict[str, Any]:
    body = json.dumps({"n": number}).encode()
    call = {"org": "default", "dag": "desk", "job": "load", "headers": sign(HookScheme.HMAC, body, SECRET, 0)}
    return {"items": [{**call, "body": base64.b64encode(body).decode()}]}


async def deliver(caller: Caller, number: int) -> Any:
    """Repeated until it is answered, as a sender does."""
    status, answer = await caller.internal(HOOK, batch(number))
    assert status == OK, answer
    (outcome,) = answer["outcomes"]
    assert outcome["delivery_id"], outcome
    return outcome["delivery_id"]


async def test_a_delivery_counts_once_wherever_a_dispatcher_dies(system: System) -> None:
    async with calling(system) as caller:
        first = system.dispatcher(hook_secrets=KEYS)
        await deploy(caller)
        await first.kill()
        ids = []
        for number, point in enumerate(("accept_hooks.before_commit", "accept_hooks.after_commit")):
            dying = system.dispatcher(point=point, hook_secrets=KEYS)
            await caller.until_ready(0)
            with pytest.raises(httpx.HTTPError):
                await caller.once(HOOK, batch(number))
            await dies_at(dying, point)
            living = system.dispatcher(hook_secrets=KEYS)
            ids.append(await deliver(caller, number))
            assert await deliver(caller, number) == ids[-1]
            await living.kill()
    rows = await system.pool.fetch("SELECT id FROM source_deliveries ORDER BY number")
    assert [str(row["id"]) for row in rows] == ids
    assert await system.pool.fetchval("SELECT count(*) FROM tasks") == len(ids)


async def test_held_deliveries_fire_once_each_when_a_dispatcher_dies_while_it_releases_them(system: System) -> None:
    async with calling(system) as caller:
        first = system.dispatcher(hook_secrets=KEYS)
        await deploy(caller)
        await caller.user("POST", "/dags/desk/jobs/load/pause")
        for number in range(10):
            await deliver(caller, number)
        await first.kill()
        dying = system.dispatcher(point="resume_job.released", hook_secrets=KEYS)
        await caller.until_ready(0)
        with pytest.raises(httpx.HTTPError):
            await caller.once("/internal/v1/dags/desk/jobs/load/resume", {})
        await dies_at(dying, "resume_job.released")
        system.dispatcher(hook_secrets=KEYS)
        await caller.user("POST", "/dags/desk/jobs/load/resume")
        released = "SELECT count(*) = 10 FROM tasks"
        await until(lambda: system.pool.fetchval(released), "all that was held has fired")
    assert await system.pool.fetchval("SELECT count(*) FROM source_deliveries WHERE held") == 0


@pytest.mark.parametrize("point", ["fire_source.before_commit", "fire_source.after_commit"])
async def test_a_request_to_fire_counts_once_wherever_a_dispatcher_dies(system: System, point: str) -> None:
    cron = "name: desk\njobs:\n  - {name: load, operator: works, runtime: ecs_platform, source: {kind: manual}}\n"
    request = {"request_id": "00000000-0000-4000-8000-000000000001"}
    async with calling(system) as caller:
        first = system.dispatcher()
        status, answer = await caller.user("POST", "/dags/desk/versions", {"yaml": cron})
        assert status == OK, answer
        await caller.user("PUT", "/dags/desk/active", {"dag_version_id": answer["dag_version_id"]})
        await first.kill()
        dying = system.dispatcher(point=point)
        await caller.until_ready(0)
        with pytest.raises(httpx.HTTPError):
            await caller.once("/internal/v1/dags/desk/jobs/load/fire", request)
        await dies_at(dying, point)
        system.dispatcher()
        status, answer = await caller.user("POST", "/dags/desk/jobs/load/fire", request)
        assert (status, answer["created"]) == (OK, point == "fire_source.before_commit")
    assert await system.pool.fetchval("SELECT count(*) FROM tasks") == 1


async def test_a_dispatcher_that_starts_without_the_secret_of_an_active_source_says_which(system: System) -> None:
    async with calling(system) as caller:
        first = system.dispatcher(hook_secrets=KEYS)
        await deploy(caller)
        await first.kill()
        again = system.dispatcher(hook_secrets=KEYS)
        await caller.until_ready(0)
        assert "no secret" not in again.said()
        await again.kill()
        without = system.dispatcher()
        await caller.until_ready(0)
        await without.until_said("a webhook source has no secret")
        assert "TRACE_HOOK_SECRETS__KEY" in without.said()
        status, answer = await caller.internal(HOOK, batch(1))
        assert status == OK, answer
        assert answer["outcomes"][0]["delivery_id"] is None
        assert answer["outcomes"][0]["retry_after"] == 30
