"""Ends the children of a supervisor and all their descendants when the supervisor is killed.

The supervisor holds the other end of this process's standard input and writes the session of each child (`123` added,
`-123` removed). When the pipe closes, every process left in those sessions (a JVM that a worker started, Python daemons
that the JVM started) is killed. Standard library only: it must start at once and never fail.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

EMPTY_SCANS = 2
GRACE_SECONDS = 1.0
"""Postgres, signalled by the kernel, releases its shared memory in this time."""


class OrphanGuard:
    """The supervisor's side: starts the guard process and sends it the sessions."""

    def __init__(self) -> None:
        self._sessions = set[int]()
        self._process: subprocess.Popen[bytes] | None = None

    def ensure_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tracelake.lite.end_orphans"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for session in self._sessions:
            self._send(session)

    def add(self, session: int) -> None:
        self._sessions.add(session)
        self._send(session)

    def remove(self, session: int) -> None:
        self._sessions.discard(session)
        self._send(-session)

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _send(self, session: int) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(f"{session}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed: `ensure_running` sends all sessions to its successor


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
    """Sends SIGKILL to every process in them until none is left.

    One empty scan is not enough: it misses a process that was forked during the scan by one that ended during it.
    """
    empty_scans = 0
    for _ in range(50):
        members = [pid for pid in members_of(sessions) if pid != os.getpid()]
        if not members:
            empty_scans += 1
            if empty_scans == EMPTY_SCANS:
                return
            continue
        empty_scans = 0
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.05)


def members_of(sessions: set[int]) -> list[int]:
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name may contain spaces and brackets: after the last bracket come state, ppid, pgrp, session.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) in sessions and state != "Z":
            members.append(int(entry.name))
    return members


if __name__ == "__main__":
    main()
