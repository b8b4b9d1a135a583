"""The last one out: ends every child's whole family when the supervisor is gone, however it went.

The supervisor holds the other end of our standard input and tells us the session of each child (`+123`, `-123`). When
the pipe closes without its leave, it was killed; whatever still lives in those sessions (a JVM that a worker started,
Python daemons that the JVM started) is ended. Standard library only: it must start at once and never fail.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

LOOKS = 2
GRACE_SECONDS = 1.0
"""Postgres, told by the kernel, is closing its shared memory in this time."""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line)
        if session > 0:
            sessions.add(session)
        else:
            sessions.discard(-session)
    if sessions:
        time.sleep(GRACE_SECONDS)
        end_sessions(sessions)


def end_sessions(sessions: set[int]) -> None:
    """SIGKILL everyone in them, again until nobody is left: a family may still be growing.

    Nobody found once is not enough: one who was born during the look, of one who died during it, is seen by the next.
    """
    looks_in_vain = 0
    for _ in range(50):
        members = [pid for pid in members_of(sessions) if pid != os.getpid()]
        if not members:
            looks_in_vain += 1
            if looks_in_vain == LOOKS:
                return
            continue
        looks_in_vain = 0
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.05)


def members_of(sessions: set[int]) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name may hold spaces and brackets: what follows the last bracket is state, ppid, pgrp, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) in sessions and state != "Z":
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
