"""Shares of the limits of a pool of nodes, with the real Dispatcher: they never add up to more than the limit.

Workers come, ask, lose answers, are cut off and die, in any order. Time passes for Postgres by moving every expiry, and
for the workers by a clock of the test, which is never ahead of that.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from tests.support.dispatcher.control import an_org
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.lease_rpc_shares import lease_rpc_shares
from tracelake.dispatcher.flow.list_in_flight import list_in_flight
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.errors import Conflict, InvalidRequest
from tracelake.wire.internal.rpc_shares import PoolUse, RpcSharesAnswer, RpcSharesRequest

pytestmark = pytest.mark.anyio

LIMIT, RATE, LEASE = 5, 40.0, 10.0
STEPS = 250


@dataclass
class SimulatedWorker:
    """As `worker/lease_rpc_shares.py` and `chain/nodes/limits.py` use a share, with a clock of the test."""

    name: str
    cap: int = 0
    rate: float = 0.0
    until: float = 0.0
    used: int = 0
    wanted: int = 9
    number: int = 0
    late: list[RpcSharesRequest] = field(default_factory=list)

    def request(self, now: float) -> RpcSharesRequest:
        self.number += 1
        if now >= self.until:
            self.used = 0
        use = PoolUse(
            pool="main",
            max_concurrency=LIMIT,
            requests_per_second=RATE,
            held=max(self.cap, self.used),
            held_rate=self.rate,
            used=self.used,
            wanted=self.wanted,
        )
        return RpcSharesRequest(worker=self.name, number=self.number, pools=[use])

    def answered(self, answer: RpcSharesAnswer, sent_at: float) -> None:
        (share,) = answer.shares
        self.cap, self.rate, self.until = share.in_flight, share.rate or 0.0, sent_at + answer.lease_seconds

    def in_use(self, now: float) -> tuple[int, float]:
        return (max(self.cap, self.used), self.rate) if now < self.until else (0, 0.0)


@dataclass
class World:
    control: Control
    dice: random.Random
    now: float = 0.0
    workers: list[SimulatedWorker] = field(default_factory=list)
    born: int = 0

    async def send(self, request: RpcSharesRequest) -> RpcSharesAnswer:
        return await lease_rpc_shares(self.control.pool, request, LEASE)

    async def step(self) -> None:
        kinds = {self.join: 1, self.ask: 8, self.lose_answer: 2, self.delay: 2, self.arrive_late: 2, self.die: 1}
        await self.dice.choices([*kinds, self.use, self.wait], [*kinds.values(), 8, 3])[0]()

    async def join(self) -> None:
        if len(self.workers) < 8:
            self.born += 1
            self.workers.append(SimulatedWorker(f"w{self.born}"))

    async def ask(self) -> None:
        for worker in self.dice.sample(self.workers, min(1, len(self.workers))):
            worker.wanted, sent_at = self.dice.choice([0, 1, 3, 9]), self.now
            worker.answered(await self.send(worker.request(sent_at)), sent_at)

    async def lose_answer(self) -> None:
        for worker in self.dice.sample(self.workers, min(1, len(self.workers))):
            await self.send(worker.request(self.now))

    async def delay(self) -> None:
        for worker in self.dice.sample(self.workers, min(1, len(self.workers))):
            worker.late.append(worker.request(self.now))

    async def arrive_late(self) -> None:
        for worker in self.workers:
            while worker.late:
                try:
                    await self.send(worker.late.pop())
                except Conflict:
                    continue

    async def die(self) -> None:
        if len(self.workers) > 1:
            self.workers.remove(self.dice.choice(self.workers))

    async def use(self) -> None:
        for worker in self.workers:
            free = worker.cap if self.now < worker.until else 0
            worker.used = max(worker.used - self.dice.randint(0, 3), self.dice.randint(0, free) if free else 0)

    async def wait(self) -> None:
        seconds = self.dice.choice([0.5, 2.0, 6.0])
        self.now += seconds
        await self.control.pool.execute(
            "UPDATE rpc_shares SET expires_at = expires_at - make_interval(secs => $1)", seconds
        )

    def check(self) -> None:
        used = [worker.in_use(self.now) for worker in self.workers]
        assert sum(in_flight for in_flight, _ in used) <= LIMIT
        assert sum(rate for _, rate in used) <= RATE * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
async def test_shares_in_use_never_add_up_to_more_than_the_limit(control: Control, seed: int) -> None:
    world = World(control, random.Random(seed))  # noqa: S311 - a test's dice
    for _ in range(STEPS):
        await world.step()
        world.check()
    # Once nothing goes wrong any more, all of the limit is in use again.
    await world.wait()
    world.workers = world.workers[:3] or [SimulatedWorker("last")]
    for _ in range(8):
        world.now += LEASE / 2
        await control.pool.execute("UPDATE rpc_shares SET expires_at = expires_at - interval '5s'")
        for worker in world.workers:
            worker.used, worker.wanted = 0, 9
            worker.answered(await world.send(worker.request(world.now)), world.now)
            world.check()
    assert sum(worker.in_use(world.now)[0] for worker in world.workers) == LIMIT


async def test_requests_at_the_same_moment_do_not_get_the_same_places(control: Control) -> None:
    workers = [SimulatedWorker(f"w{number}") for number in range(8)]
    for _ in range(6):
        answers = await asyncio.gather(
            *(lease_rpc_shares(control.pool, worker.request(0.0), LEASE) for worker in workers)
        )
        for worker, answer in zip(workers, answers, strict=True):
            worker.answered(answer, 0.0)
        assert sum(worker.cap for worker in workers) <= LIMIT
        recorded = await control.pool.fetchrow("SELECT sum(in_flight) AS places, sum(rate) AS rate FROM rpc_shares")
        assert recorded is not None
        assert recorded["places"] <= LIMIT
        assert recorded["rate"] <= RATE * (1 + 1e-9)


async def test_a_dead_workers_share_is_there_for_others_when_its_lease_is_over_and_a_stopped_ones_at_once(
    control: Control,
) -> None:
    dead, stopped, heir = (SimulatedWorker(name) for name in ("dead", "stopped", "heir"))

    async def ask(worker: SimulatedWorker) -> int:
        worker.answered(await lease_rpc_shares(control.pool, worker.request(0.0), LEASE), 0.0)
        return worker.cap

    assert await ask(dead) == LIMIT, "a single worker has all of it at once"
    assert await ask(heir) == 0
    await control.pool.execute("UPDATE rpc_shares SET expires_at = now() WHERE worker = 'dead'")
    assert await ask(heir) == LIMIT
    assert await control.pool.fetchval("SELECT count(*) FROM rpc_shares") == 1, "what has expired is deleted"
    await ask(stopped)
    assert await ask(heir) < LIMIT, "both want it"
    await ask(heir)
    assert 0 < await ask(stopped) < LIMIT
    await lease_rpc_shares(control.pool, RpcSharesRequest(worker="stopped", number=99, pools=[]), LEASE)
    assert await ask(heir) == LIMIT


async def test_metrics_and_the_api_show_what_is_leased(control: Control) -> None:
    worker = SimulatedWorker("one")
    await lease_rpc_shares(control.pool, worker.request(0.0), LEASE)
    (pool,) = (await list_in_flight(control.pool, (await an_org(control.pool)).id)).rpc_pools
    assert (pool.pool, pool.workers, pool.used, pool.leased, pool.limit) == ("main", 1, 0, LIMIT, LIMIT)
    assert (pool.leased_rate, pool.limit_rate) == (RATE, RATE)
    gauges = Gauges(control.pool, control.queue, control.runtimes, control.metrics)
    await gauges.refresh()
    text = control.metrics.text().decode()
    assert f'trace_rpc_pool_requests{{pool="main",state="leased"}} {LIMIT:.1f}' in text
    assert f'trace_rpc_pool_calls_per_second{{pool="main",state="limit"}} {RATE:.1f}' in text
    assert 'trace_rpc_pool_workers{pool="main"} 1.0' in text


async def test_a_late_request_and_one_with_a_pool_twice_are_refused(control: Control) -> None:
    worker = SimulatedWorker("one")
    early, late = worker.request(0.0), worker.request(0.0)
    await lease_rpc_shares(control.pool, late, LEASE)
    with pytest.raises(Conflict, match="later request"):
        await lease_rpc_shares(control.pool, early, LEASE)
    twice = RpcSharesRequest(worker="one", number=9, pools=[*late.pools, *late.pools])
    with pytest.raises(InvalidRequest, match="twice"):
        await lease_rpc_shares(control.pool, twice, LEASE)
