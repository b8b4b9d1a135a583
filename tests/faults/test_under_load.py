"""A Gateway and a Dispatcher as processes, with more callers at once than they serve: each is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.child_process import running_program
from tests.support.systems.processes import System, is_ready, user_client
from tests.support.waiting import SECONDS, until
from tracelake.lite.home import public_pem
from tracelake.lite.network_ports import free_ports

pytestmark = pytest.mark.anyio
CALLERS, AT_ONCE = 150, 20
CONNECTIONS, HANDSHAKE_SECONDS = 1000, 120
DAG = "name: shop\njobs: [{name: fetch, operator: noop, runtime: dispatcher, source: {kind: manual}}]\n"


@asynccontextmanager
async def public(system: System, **http: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The Gateway, to an admin; one connection for each call at once."""
    key, (port,) = ec.generate_private_key(ec.SECP256R1()), free_ports(1)
    system.dispatcher()
    system.gateway(port, public_pem(key), **http)
    async with user_client(system, key, port, limits=httpx.Limits(max_connections=None)) as client:
        await until(lambda: is_ready(client), "the Gateway is ready", ignoring=(httpx.HTTPError,))
        yield client


async def deployed(client: httpx.AsyncClient) -> None:
    made = await client.post("/v1/dags/shop/versions", json={"yaml": DAG})
    assert made.is_success, made.text
    body = {"dag_version_id": made.json()["dag_version_id"]}
    assert (await client.put("/v1/dags/shop/active", json=body)).is_success


async def test_more_triggers_at_once_than_are_served_are_accepted_or_clearly_refused(system: System) -> None:
    async with public(system, requests=AT_ONCE, connections=4 * AT_ONCE) as client:
        await deployed(client)
        health = asyncio.create_task(_health(client))
        requests = {uuid4(): n for n in range(CALLERS)}
        answers: dict[UUID, httpx.Response] = {}
        async with system.pool.acquire() as connection, connection.transaction():
            await connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")  # those that are served wait
            calls = [asyncio.create_task(_trigger(client, answers, *item)) for item in requests.items()]
            async with asyncio.timeout(SECONDS):
                while len(answers) < CALLERS - AT_ONCE:  # all others are refused
                    await connection.execute("SELECT pg_sleep(0.02)")  # the server ends a transaction that idles
        await asyncio.gather(*calls)
        refused = [answer for answer in answers.values() if not answer.is_success]
        while left := [request for request in requests if not answers[request].is_success]:
            for request in left:
                await _trigger(client, answers, request, requests[request])
        assert not health.done(), "it was answered all the time"
        health.cancel()
    assert refused
    assert {answer.status_code for answer in refused} <= {429, 503}
    assert all(answer.headers["retry-after"].isdecimal() for answer in refused)
    assert all(answer.json()["error"]["retryable"] for answer in refused)
    assert await system.pool.fetchval("SELECT count(*) FROM events WHERE origin = 'manual'") == CALLERS
    assert all(child.alive() for child in system.started)


async def test_health_is_answered_while_a_thousand_connections_trigger_at_once(system: System) -> None:
    """Callers and prober are processes of their own. How long their handshakes take says something of the machine."""
    async with public(system, header_seconds=HANDSHAKE_SECONDS) as client:
        await deployed(client)
        request = {"port": client.base_url.port, "ca": str(system.tls.ca), "count": CONNECTIONS}
        request["token"] = client.headers["authorization"].removeprefix("Bearer ")
        async with running_program("gateway_callers", "probe", given=request) as prober:
            assert prober.stdout is not None
            assert await prober.stdout.readline() == b"ready\n"
            async with running_program("gateway_callers", "trigger", given=request) as callers:
                answered, _ = await callers.communicate(b"")
            probed, _ = await prober.communicate(b"")  # ends its input
    answers: dict[str, int] = json.loads(answered)
    health = json.loads(probed)
    print(f"answers: {answers}; /healthz: {health}")  # noqa: T201 - how slow it was is shown, and not judged
    assert sum(answers.values()) == CONNECTIONS
    assert set(answers) <= {"200", "429", "503"}, "each was accepted or clearly refused"
    assert await system.pool.fetchval("SELECT count(*) FROM events WHERE origin = 'manual'") == answers["200"]
    assert all(probes["probes"] > 1 and probes["failed"] == [] for probes in health.values())
    assert all(child.alive() for child in system.started)


async def _trigger(client: httpx.AsyncClient, answers: dict[UUID, httpx.Response], request: UUID, cursor: int) -> None:
    body = {"cursor": cursor, "request_id": str(request)}
    answers[request] = await client.post("/v1/dags/shop/jobs/fetch/trigger", json=body)


async def _health(client: httpx.AsyncClient) -> None:
    while True:
        assert (await client.get("/healthz")).status_code == 200
        await asyncio.sleep(0.1)
