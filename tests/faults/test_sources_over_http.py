"""Sources as their users see them: a Dispatcher, a Gateway, a scheduler and a worker as processes, over HTTPS."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.identity.hook_signatures import sign
from tests.support.systems.processes import System, is_ready, user_client
from tests.support.tls import https
from tests.support.waiting import until
from tracelake.domain.sources.signatures import HookScheme
from tracelake.lite.home import public_pem
from tracelake.lite.network_ports import free_port

pytestmark = pytest.mark.anyio

SECRET = "a_secret_of_these_tests"
DAG = """
name: desk
jobs:
  - {name: tick, operator: noop, runtime: dispatcher, source: {kind: cron, schedule: "* * * * *"}}
  - {name: after_tick, operator: noop, runtime: ecs_platform, inputs: [{from: {job: tick}}]}
  - name: hook
    operator: noop
    runtime: dispatcher
    source: {kind: webhook, scheme: standard, secret: KEY, max_bytes: 99}
  - {name: after_hook, operator: noop, runtime: ecs_platform, inputs: [{from: {job: hook}}]}
  - {name: bare, operator: noop, runtime: dispatcher, source: {kind: webhook, scheme: hmac, secret: OTHER}}
"""
HOOK = "/v1/hooks/default/desk/hook"


@asynccontextmanager
async def public(
    system: System, clock: Path | None = None, dispatchers_clock: Path | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A user of the public API, of a system that has just started and has the DAG. `clock`: of the scheduler."""
    system.dispatcher(hook_secrets={"key": SECRET}, clock=dispatchers_clock)
    key, port = ec.generate_private_key(ec.SECP256R1()), free_port()
    system.gateway(port, public_pem(key))
    system.scheduler(clock=clock)
    system.worker()
    async with user_client(system, key, port) as http:
        await until(lambda: is_ready(http), "the Gateway is ready", ignoring=(httpx.HTTPError,))
        version = (await http.post("/v1/dags/desk/versions", json={"yaml": DAG})).json()["dag_version_id"]
        assert (await http.put("/v1/dags/desk/active", json={"dag_version_id": version})).is_success
        yield http


async def completed(system: System, job: str, tasks: int) -> Any:
    sql = (
        "SELECT count(*) >= $2 FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND t.status = 'Completed'"
    )
    return await until(lambda: system.pool.fetchval(sql, job, tasks), f"{tasks} tasks of {job} have completed")


@pytest.mark.parametrize("wrong_by", [0, -86_400, 10 * 365 * 86_400])
async def test_a_slot_becomes_a_task_downstream_whatever_the_clock_of_the_scheduler_says(
    system: System, tmp_path: Path, wrong_by: int
) -> None:
    clock = tmp_path / "wrong_by"
    clock.write_text(str(wrong_by))
    async with public(system, clock) as http:
        await system.pool.execute(
            "UPDATE source_schedules"
            " SET decided_until = date_trunc('minute', now()) - interval '2 minutes', due_at = now()"
        )
        await system.pool.execute("NOTIFY trace_control, 'schedules'")
        await completed(system, "after_tick", 2)
        shown = (await http.get("/v1/dags/desk/jobs/tick/source")).json()
        assert len(shown["next_fires"]) == 5
        assert {slot["reason"] for slot in shown["slots"]} == {None}


@pytest.mark.parametrize("wrong_by", [0, 10 * 365 * 86_400])
async def test_a_signed_call_becomes_a_task_downstream_and_others_are_answered_as_they_deserve(
    system: System, tmp_path: Path, wrong_by: int
) -> None:
    """Whatever the clock of the Dispatcher says: a signed time is compared with that of Postgres."""
    clock = tmp_path / "wrong_by"
    clock.write_text(str(wrong_by))
    async with (
        public(system, dispatchers_clock=clock) as user,
        https(str(user.base_url), system.tls.ca) as http,
    ):
        body = json.dumps({"n": 1}).encode()
        good = sign(HookScheme.STANDARD, body, SECRET, time.time())
        first = await http.post(HOOK, content=body, headers=good)
        again = await http.post(HOOK, content=body, headers=good)
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.content == again.content
        await completed(system, "after_hook", 1)
        bad = sign(HookScheme.STANDARD, body, "another_secret_of_it", time.time())
        old = sign(HookScheme.STANDARD, body, SECRET, time.time() - 3600)
        refused = [
            await http.post(path, content=body, headers=headers)
            for path, headers in (
                (HOOK, bad),
                (HOOK, old),
                (HOOK, {}),
                (f"{HOOK}x", good),
                ("/v1/hooks/default/Desk/hook", good),
            )
        ]
        assert {answer.status_code for answer in refused} == {401}
        assert len({answer.content for answer in refused}) == 1
        large, no_json = b"[" + b" " * 200 + b"]", b"{"
        for content, status in ((large, 413), (b" " * 2_000_000, 413), (no_json, 400)):
            headers = sign(HookScheme.STANDARD, content, SECRET, time.time(), "msg_2")
            assert (await http.post(HOOK, content=content, headers=headers)).status_code == status
        later = await http.post(
            "/v1/hooks/default/desk/bare", content=b"{}", headers=sign(HookScheme.HMAC, b"{}", "x" * 20, 0)
        )
        assert (later.status_code, later.headers["retry-after"]) == (503, "30")
        assert "OTHER" not in later.text
        listed = {row["job"]: row for row in (await user.get("/v1/sources")).json()["sources"]}
        assert "TRACE_HOOK_SECRETS__OTHER" in listed["bare"]["not_ready"]
        assert (await http.get("/v1/sources")).status_code == 401
        assert await system.pool.fetchval("SELECT count(*) FROM source_deliveries") == 1
