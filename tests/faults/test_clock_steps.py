"""Clocks of processes are hours apart and jump while they work: leases, retries, commits and tokens do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults.history_checker import assert_kept
from tests.support.faults.traffic import Traffic, by_hand
from tests.support.systems.caller import calling
from tests.support.systems.processes import System

pytestmark = pytest.mark.anyio

HOUR = 3600


async def test_wrong_and_jumping_clocks_change_nothing(system: System, tmp_path: Path) -> None:
    """No token is refused: the test's own worker accepts no refusal but a lost lease."""
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    set_clocks(ahead, 7 * HOUR, behind, -7 * HOUR)
    async with calling(system, replicas=2) as caller:
        traffic = Traffic(system, caller)
        for replica, clock in enumerate((ahead, behind)):
            system.dispatcher(replica=replica, clock=clock)
        await traffic.deploy()
        for replica, clock in enumerate((behind, ahead)):
            system.worker(replica=replica, clock=clock)
        async with by_hand(caller, system):
            for step in range(6):
                set_clocks(ahead, (7 + 24 * step) * HOUR, behind, (-7 - 24 * step) * HOUR)
                await traffic.round()
            set_clocks(ahead, -30 * HOUR, behind, 30 * HOUR)
            await traffic.settle()
    early = (
        "SELECT count(*) FROM task_attempts WHERE outcome = 'LeaseExpired' AND ended_at < started_at + interval '2 s'"
    )
    assert await system.pool.fetchval(early) == 0
    said = [line for child in system.started for line in child.said().splitlines()]
    # A worker of a busy machine may lose a lease of two seconds, whatever its clock says.
    assert [line for line in said if "refused" in line and "lease_lost" not in line] == []
    await assert_kept(system.pool, system.queue_pool, traffic.accepted)


def set_clocks(ahead: Path, more: int, behind: Path, less: int) -> None:
    for file, seconds in ((ahead, more), (behind, less)):
        fresh = file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(file)
