"""How often the loops that nothing signals run: each at its own period, on a clock that the test steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

from tests.support.dispatcher.control import HOLLOW
from tracelake.dispatcher.maintenance.loop import run_loop
from tracelake.dispatcher.process import loops
from tracelake.settings import Settings

RUNS_IN_TWO_HOURS = {
    "cancel_retired": 1440,
    "delete_applied_batches": 120,
    "delete_old_events": 120,
    "delete_old_exports": 1,
    "delete_old_invalidations": 2,
    "delete_old_pauses": 2,
    "delete_old_publishes": 2,
    "delete_old_tasks": 120,
    "delete_orphan_files": 120,
    "delete_replaced_files": 12,
    "delete_unused_bundles": 2,
    "link_audit": 1440,
    "prune_audit": 120,
    "prune_audit_entries": 120,
    "prune_sources": 120,
    "prune_logs": 1440,
    "prune_outbox": 1440,
    "reconcile": 1440,
    "remove_left_generations": 12,
    "republish_batches": 120,
}


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """Its time moves to the next timer as soon as nothing else is to be run."""

    now = 0.0
    _ready: Any
    _scheduled: Any

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def test_each_cleaning_loop_runs_as_often_as_its_period_says() -> None:
    with asyncio.Runner(loop_factory=SteppedEventLoop) as runner:
        assert runner.run(runs_within(7200)) == RUNS_IN_TWO_HOURS


async def runs_within(seconds: float) -> Counter[str]:
    runs = Counter[str]()

    async def count(name: str) -> int:
        runs[name] += 1
        return 0

    counted = [
        replace(loop, once=partial(count, loop.name))
        for loop in loops(HOLLOW, Settings())
        if loop.name in RUNS_IN_TWO_HOURS
    ]
    running = [asyncio.create_task(run_loop(loop)) for loop in counted]
    await asyncio.sleep(seconds - 1)
    for task in running:
        task.cancel()
    return runs
