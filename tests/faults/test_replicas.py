"""Two Gateways and two Dispatchers, each pair behind one address: no call needs the process of the call before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.systems.balancer import Balancer, balancing
from tests.support.systems.processes import Child, System, is_ready, user_client
from tests.support.waiting import SECONDS, until
from tracelake.lite.home import public_pem
from tracelake.lite.network_ports import free_ports

pytestmark = pytest.mark.anyio
TRIGGERS = 12
DAG = """
name: shop
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
"""
ENDED = """
    SELECT count(*), count(DISTINCT t.event_id), count(*) FILTER (WHERE t.status = 'Completed')
      FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"""


@dataclass(frozen=True)
class Replicas:
    system: System
    public: httpx.AsyncClient
    """A connection of its own for each call."""
    gateways: list[Child]
    dispatchers: list[Child]
    balancers: list[Balancer]

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Repeated while a process that has ended is still tried."""
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    answer = await self.public.request(method, path, json=body, headers=headers)
                except httpx.TransportError:
                    continue
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    assert answer.is_success, answer.text
                    return answer.json()

    async def trigger(self, cursor: int, request: str) -> None:
        await self.call("POST", "/v1/dags/shop/jobs/ask/trigger", {"request_id": request, "cursor": cursor})


@pytest.fixture
async def replicas(system: System) -> AsyncIterator[Replicas]:
    key, ports = ec.generate_private_key(ec.SECP256R1()), free_ports(2)
    async with AsyncExitStack() as opened:
        pairs = list(zip(*system.listeners, strict=True))
        of_dispatchers = [await opened.enter_async_context(balancing(*pair)) for pair in pairs]
        entry = await opened.enter_async_context(balancing(*ports))
        dispatchers = [system.dispatcher(replica=replica) for replica in range(2)]
        system.listeners.append((of_dispatchers[0].port, of_dispatchers[1].port))
        gateways = [system.gateway(port, public_pem(key), replica=2) for port in ports]
        limits = httpx.Limits(max_keepalive_connections=0)
        public = await opened.enter_async_context(user_client(system, key, entry.port, limits=limits))
        for _ in range(4):
            await until(lambda: is_ready(public), "both Gateways are ready", ignoring=(httpx.HTTPError,))
        yield Replicas(system, public, gateways, dispatchers, [*of_dispatchers, entry])


async def test_calls_that_follow_each_other_reach_any_process_and_see_what_was_done(replicas: Replicas) -> None:
    made = await replicas.call("POST", "/v1/dags/shop/versions", {"yaml": DAG})
    await replicas.call("PUT", "/v1/dags/shop/active", {"dag_version_id": made["dag_version_id"]})
    requests = [str(uuid4()) for _ in range(TRIGGERS)]
    for cursor, request in enumerate(requests):
        for _ in range(2):  # the same request again, to another Gateway
            await replicas.trigger(cursor, request)
    replicas.system.worker(replica=2)
    await until(lambda: _all_ended(replicas.system, TRIGGERS), "every task has completed")
    for request in requests:
        assert (await replicas.call("GET", f"/v1/triggers/{request}?downstream=true"))["succeeded"]
    assert all(len(balancer.accepted) == 2 for balancer in replicas.balancers), "all of them were used"


async def test_the_loss_of_one_of_each_loses_and_doubles_nothing(replicas: Replicas) -> None:
    made = await replicas.call("POST", "/v1/dags/shop/versions", {"yaml": DAG})
    await replicas.call("PUT", "/v1/dags/shop/active", {"dag_version_id": made["dag_version_id"]})
    replicas.system.worker(replica=2)
    for cursor in range(TRIGGERS):
        await replicas.trigger(cursor, str(uuid4()))
        if cursor == TRIGGERS // 2:
            await replicas.gateways[0].kill()
            await replicas.dispatchers[0].kill()
    await until(lambda: _all_ended(replicas.system, TRIGGERS), "every task has completed")


async def _all_ended(system: System, wanted: int) -> bool:
    """Each once. Time passes for those that a killed process held."""
    await system.elapse(leases=False)
    (row,) = await system.pool.fetch(ENDED)
    total, events, completed = row
    assert total == events <= wanted
    return bool(completed == wanted)
