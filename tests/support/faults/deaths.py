"""A process that dies at a crash point."""

from __future__ import annotations

from tests.support.systems.processes import Child
from tracelake.domain.crash_points import POINTS

RETAINING = [item for item in POINTS if item.startswith("delete_replaced_files.")]
"""`tests/faults/killed/test_delete_replaced_files.py` dies at them."""
FIRED = ("scheduler.", "fire_schedules.", "accept_hooks.", "fire_source.", "resume_job.released")
SOURCES = [item for item in POINTS if item.startswith(FIRED)]
"""`tests/faults/killed/test_schedules.py` and `test_hooks.py` die at them."""


LEFT = [item for item in POINTS if item.startswith("remove_left_generations.")]
"""`tests/faults/killed/test_remove_left_generations.py` dies at them."""


async def dies_at(child: Child, point: str) -> None:
    assert await child.ended(120), f"{point} was never hit: {child.said()}"
    assert child.said().endswith(f"crash point {point}: SIGKILL\n"), child.said()
