"""How long the threads of a process ran, and how long they waited for a core: tells a slow machine from slow work.

Linux says it of each thread in `/proc/PID/task/TID/schedstat`. Where it is not said, nothing has waited.
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
    """By thread; none of a process that has ended, or where the system does not say."""
    folder = Path(f"/proc/{pid}/task")
    try:
        found = {int(thread.name): _read(thread / "schedstat") for thread in folder.iterdir()}
    except OSError:
        return {}
    return {thread: times for thread, times in found.items() if times is not None}


def share_of_cores(before: Mapping[int, ThreadTimes], now: Mapping[int, ThreadTimes]) -> float:
    """Of the time for which threads wanted to run, the part for which they did: 1 on an idle machine."""
    both = before.keys() & now.keys()
    ran = sum(now[thread].ran - before[thread].ran for thread in both)
    waited = sum(now[thread].waited - before[thread].waited for thread in both)
    return ran / (ran + waited) if ran > 0 and waited > 0 else 1.0


def _read(file: Path) -> ThreadTimes | None:
    """None of a thread that has just ended."""
    try:
        ran, waited, _slices = file.read_text().split()
    except (OSError, ValueError):
        return None
    return ThreadTimes(int(ran) / NANOSECONDS, int(waited) / NANOSECONDS)
