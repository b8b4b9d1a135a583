"""How long the Gateway waits for the Dispatcher is what the call may take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.systems.gateway import DAG, System, system
from tracelake.wire.calls.call import LARGE_DAG_SECONDS
from tracelake.wire.calls.user_calls import CALLS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def trace(state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    async with system(state_db, queue_db, tmp_path) as made:
        yield made


async def test_a_deploy_is_given_the_time_that_hundreds_of_jobs_take(trace: System) -> None:
    waited: dict[str, float] = {}

    async def note(request: httpx.Request) -> None:
        waited[request.url.path] = request.extensions["timeout"]["read"]

    trace.inside.event_hooks["request"].append(note)
    await trace.deploy("shop", DAG)
    await trace.got("acme|reader", "GET", "/v1/dags")
    assert waited == {
        "/internal/v1/dags/shop/versions": LARGE_DAG_SECONDS,
        "/internal/v1/dags/shop/active": LARGE_DAG_SECONDS,
        "/internal/v1/dags": CALLS["list_dags"].seconds,
    }


async def test_three_hundred_jobs_are_deployed_and_the_same_again_is_the_same_version(trace: System) -> None:
    jobs = [
        f"  - {{name: job_{n}, operator: noop, runtime: dispatcher, inputs: [{{from: {{job: job_{n - 1}}}}}]}}"
        for n in range(1, 300)
    ]
    head = "name: wide\njobs:\n  - {name: job_0, operator: noop, runtime: dispatcher, source: {kind: manual}}"
    text = "\n".join([head, *jobs])
    first, again = [
        await trace.got("acme|writer", "POST", "/v1/dags/wide/versions", json={"yaml": text}) for _ in range(2)
    ]
    assert (first["created"], again["created"], len(first["jobs"])) == (True, False, 300)
    assert first["dag_version_id"] == again["dag_version_id"]
