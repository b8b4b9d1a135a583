"""Wake-ups are doubled, shuffled, delayed, dropped and lost on either side of the queue: every task runs, once."""

from __future__ import annotations

import pytest

from tests.support.faults.backends import Faults
from tests.support.faults.history_checker import assert_kept
from tests.support.faults.traffic import Traffic, by_hand
from tests.support.systems.caller import calling
from tests.support.systems.processes import System

pytestmark = pytest.mark.anyio

ROUNDS = 8


@pytest.mark.parametrize("more", [0, *(pytest.param(other, marks=pytest.mark.long) for other in (1, 2))])
async def test_a_queue_with_only_the_documented_guarantees_is_enough(
    system: System, more: int, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--fault-seed") + more
    publishing = Faults(seed, lost=0.25, unconfirmed=0.25, doubled=0.4, delayed=0.3)
    receiving = Faults(seed, dropped=0.1, unacknowledged=0.3)
    async with calling(system, replicas=2) as caller:
        traffic = Traffic(system, caller)
        for replica in range(2):
            system.dispatcher(replica=replica, faults=publishing)
        await traffic.deploy()
        for replica in range(2):
            system.worker(replica=replica, faults=receiving)
        async with by_hand(caller, system):
            for _ in range(ROUNDS):
                await traffic.round()
            await traffic.settle()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


async def test_a_wake_up_whose_publish_failed_stays_pending_until_it_is_published(system: System) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        deaf = system.dispatcher(faults=Faults(seed=1, lost=1.0))
        await traffic.deploy()
        await traffic.trigger("span", start=0, end=29)
        failed_publishes = "SELECT count(*) FROM outbox WHERE kind = 'enqueue_task' AND last_error LIKE 'lost before%'"
        while not await system.pool.fetchval(failed_publishes):
            await system.elapse()
        assert await system.queue_pool.fetchval("SELECT count(*) FROM pgqueue.messages") == 0
        await deaf.kill()
        system.dispatcher()
        system.worker()
        await traffic.settle()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)
