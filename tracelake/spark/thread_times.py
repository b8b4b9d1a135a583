"""How long the threads of a process ran and waited for a core: distinguishes a slow machine from slow work.

Linux has it in `/proc/PID/task/TID/schedstat`. Where that is missing, no wait is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NANOSECONDS: Final = 1e9


@dataclass(frozen=True)
class ThreadTimes:
    """Seconds since the thread began."""

    ran: float
    waited: float


def thread_times(pid: int | None) -> dict[int, ThreadTimes]:
    """Return the times by thread; empty for a process that has ended, or on another system."""
    folder = Path(f"/proc/{pid}/task")
    try:
        by_thread = {int(thread.name): _read(thread / "schedstat") for thread in folder.iterdir()}
    except OSError:
        return {}
    return {thread: times for thread, times in by_thread.items() if times is not None}


def share_of_cores(before: Mapping[int, ThreadTimes], now: Mapping[int, ThreadTimes]) -> float:
    """Return the share of the wanted time for which the threads ran: 1 on an idle machine."""
    both = before.keys() & now.keys()
    ran = sum(now[thread].ran - before[thread].ran for thread in both)
    waited = sum(now[thread].waited - before[thread].waited for thread in both)
    return ran / (ran + waited) if ran > 0 and waited > 0 else 1.0


def _read(file: Path) -> ThreadTimes | None:
    """None: the thread has just ended."""
    try:
        ran, waited, _slices = file.read_text().split()
    except (OSError, ValueError):
        return None
    return ThreadTimes(int(ran) / NANOSECONDS, int(waited) / NANOSECONDS)
