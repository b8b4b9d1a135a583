"""A process freezes and comes back, or is killed at any moment: a stale one stays stale, and all work drains."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.faults.history_checker import assert_kept
from tests.support.faults.traffic import Traffic, flowing
from tests.support.postgres import RunningServer
from tests.support.systems.caller import calling
from tests.support.systems.processes import Child, System
from tests.support.waiting import until
from tracelake.store.db import OUTAGES

pytestmark = pytest.mark.anyio

FROZEN_AT = [
    "trigger.after_commit",
    "claim_task.after_commit",
    "accept_event.after_commit",
    "complete_task.after_commit",
    "drain_outbox.events_routed",
    "drain_outbox.entries_taken",
    "drain_outbox.before_act",
    "drain_outbox.before_mark",
    "queue.before_publish",
    "queue.after_publish",
    "run_in_process.after_commit",
    "expire_leases.leases_ended",
]
"""Where a Dispatcher holds something that another takes over: entries, an answer, a wake-up."""


async def test_a_worker_frozen_beyond_its_lease_cannot_commit_when_it_wakes(system: System, tmp_path: Path) -> None:
    async with calling(system) as caller:
        traffic = Traffic(system, caller)
        system.dispatcher()
        await traffic.deploy()
        frozen = system.worker(hold=tmp_path / "held")
        await traffic.trigger("span", start=0, end=29)
        await until((tmp_path / "held.begun").exists, "the task runs")
        frozen.send(signal.SIGSTOP)
        assert await frozen.stopped()
        (tmp_path / "held.go").touch()
        system.worker()
        await system.drained()  # its lease ran out, and another did the work
        frozen.send(signal.SIGCONT)
        await frozen.until_said("lease lost", "refused")
        await traffic.settle()
    pool, mark = system.pool, f"worker {frozen.pid}"
    outcomes = await pool.fetch("SELECT DISTINCT outcome::text FROM task_attempts WHERE worker_id = $1", mark)
    assert [row["outcome"] for row in outcomes] == ["LeaseExpired"]
    await assert_kept(pool, system.queue_pool, traffic.accepted)


async def _stops(system: System, frozen: Child, point: str) -> bool:
    """Either of two replicas ends an expired lease: leases expire until this one did it."""
    for _ in range(30):
        if await frozen.stopped(4):
            return True
        await system.elapse(leases=point == "expire_leases.leases_ended")
    return False


async def test_a_dispatcher_that_froze_and_was_replaced_does_no_harm_when_it_wakes(system: System) -> None:
    async with calling(system, replicas=2, seconds=2.0) as caller:
        traffic = Traffic(system, caller, late=True)
        system.dispatcher(replica=1)
        await traffic.deploy()
        system.worker(replica=1)
        async with flowing(traffic):
            for point in FROZEN_AT:
                frozen = system.dispatcher(point=point, how="stop")
                assert await _stops(system, frozen, point), f"{point} was never hit: {frozen.said()}"
                await system.elapse()  # its leases are over
                await system.taken_over()
                frozen.send(signal.SIGCONT)
                await caller.until_ready(replica=0)
                assert frozen.alive(), frozen.said()
                await frozen.kill()
            stopping = system.dispatcher()
            await traffic.round()
            await stopping.kill(signal.SIGTERM)  # it stops on SIGTERM, in the middle of its work
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


async def test_kills_and_freezes_at_random_moments_lose_and_double_nothing(
    system: System, postgres: RunningServer, request: pytest.FixtureRequest
) -> None:
    seed, seconds = (request.config.getoption(f"--fault-{name}") for name in ("seed", "seconds"))
    async with calling(system, replicas=2, seconds=2.0) as caller:
        traffic = Traffic(system, caller, late=True)
        chaos = Chaos(system, postgres, random.Random(seed))  # noqa: S311 - a seed, no secret
        await traffic.deploy()
        async with flowing(traffic):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await chaos.strike()
            chaos.calm()
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


class Chaos:
    """Two Dispatchers, two workers and a Postgres; one of them is struck at a time, and those who died start again."""

    def __init__(self, system: System, postgres: RunningServer, chance: random.Random) -> None:
        self._system = system
        self._postgres = postgres
        self._chance = chance
        self._starts: list[Callable[[], Child]] = [
            lambda: system.dispatcher(replica=0),
            lambda: system.dispatcher(replica=1),
            lambda: system.worker(replica=0),
            lambda: system.worker(replica=1),
        ]
        self._alive = [start() for start in self._starts]

    async def strike(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.02, 0.4))
        strikes: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._kill,
            self._freeze,
            self._freeze,
            self._freeze_backend,
            self._freeze_postgres,
            self._restart_postgres,
            self._system.elapse,
        ]
        await self._chance.choice(strikes)()

    def calm(self) -> None:
        for index, child in enumerate(self._alive):
            if not child.alive():
                self._alive[index] = self._starts[index]()

    async def _kill(self) -> None:
        index = self._chance.randrange(len(self._starts))
        await self._alive[index].kill()
        self._alive[index] = self._starts[index]()

    async def _freeze(self) -> None:
        await self._paused(self._chance.choice(self._alive).pid)

    async def _freeze_backend(self) -> None:
        with suppress(*OUTAGES):
            rows = await self._system.pool.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            await self._paused(self._chance.choice(rows)["pid"])

    async def _freeze_postgres(self) -> None:
        assert self._postgres.process is not None
        await self._paused(self._postgres.process.pid)

    async def _restart_postgres(self) -> None:
        self._postgres.restart(self._chance.choice([signal.SIGQUIT, signal.SIGKILL]))

    async def _paused(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
