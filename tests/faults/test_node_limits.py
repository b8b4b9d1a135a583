"""Processes that call one node together keep to the limits of its pool, also when one of them is killed."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.chain.devchain import running
from tests.support.chain.proxies import watched_node
from tests.support.child_process import running_program
from tests.support.systems.caller import calling
from tests.support.systems.processes import System, url_of
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

IN_FLIGHT, RATE = 4, 60.0
SHARED = """
SELECT count(*) = $1 AND sum(in_flight) = $2 FROM rpc_shares WHERE in_flight > 0 AND expires_at > now()
"""


async def test_two_processes_share_the_limits_of_a_pool_and_the_share_of_a_killed_one_is_used_by_the_other(
    system: System,
) -> None:
    with running(blocks=4) as devchain, watched_node(devchain.url) as node:
        async with calling(system) as caller, AsyncExitStack() as programs:
            system.dispatcher()
            await caller.until_ready(0)
            given: dict[str, Any] = {
                "dispatcher": url_of(system.listeners[0][1]),
                "ca": str(system.tls.ca),
                "node": node.url,
                "chain_id": devchain.chain_id,
                "limits": {"max_concurrency": IN_FLIGHT, "requests_per_second": RATE, "batch_size": 1},
            }
            began = time.monotonic()
            processes = []
            for name in ("one", "two"):
                program = running_program("node_caller", given={**given, "name": name})
                processes.append(await programs.enter_async_context(program))
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"answered\n"
            await until(lambda: system.pool.fetchval(SHARED, 2, IN_FLIGHT), "each has a share")
            more = node.calls + 4 * RATE
            await until(lambda: node.calls >= more, "both have called for a while")
            assert 1 < node.most <= IN_FLIGHT
            processes[0].kill()
            await processes[0].wait()
            assert await system.pool.fetchval("SELECT count(*) FROM rpc_shares") == 2, "nobody has given it back"
            await system.pool.execute("UPDATE rpc_shares SET expires_at = now() WHERE worker LIKE 'one %'")
            await until(lambda: system.pool.fetchval(SHARED, 1, IN_FLIGHT), "the other has all of it")
            more = node.calls + 2 * RATE
            await until(lambda: node.calls >= more, "the other calls on")
            node.check_rate(RATE, began)
