"""A process that dies at a crash point: really, or within the process of the test, for a verb that it awaits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.support.systems.processes import Child
from tracelake.domain.crash_points import POINTS
from tracelake.runtime import crash_points

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


class Died(BaseException):
    """At a crash point: the verb or loop goes no further, and no handler of errors of its process sees it."""


class DiesAt:
    """What `crash_points` is armed with in the process of a test."""

    def __init__(self, point: str) -> None:
        self._point = point

    def passed(self, name: str) -> None:
        if name == self._point:
            raise Died


@contextmanager
def dying(at: DiesAt | None) -> Iterator[None]:
    """Whatever passes the point inside the block raises `Died` there; None: nothing does."""
    with patch.object(crash_points, "_armed", at):
        yield
