"""Named places before and after every commit and side effect, where a test ends the process to check what follows.

Nothing happens at a point unless this process was armed, which only a settings document on standard input can ask for
(`faults.point`; the environment and `trace.toml` are refused). Then the process logs it and sends itself the signal at
the chosen pass: SIGKILL, as a power cut would, or SIGSTOP, as a machine that freezes. See
`docs/reference/crash_points.md`.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal

How = Literal["kill", "stop"]
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class _Armed:
    def __init__(self, name: str, nth: int, how: How) -> None:
        self._name = name
        self._left = nth
        self._signal = SIGNALS[how]

    def passed(self, name: str) -> None:
        if name != self._name or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            os.write(2, f"crash point {name}: {self._signal.name}\n".encode())
            os.kill(os.getpid(), self._signal)


_armed: _Armed | None = None


def crash_point(name: str, *, when: object = True) -> None:
    """Does nothing, unless this process was armed for it. `when`: only a pass at which something had happened."""
    if _armed and when:
        _armed.passed(name)


def arm(name: str | None, nth: int, how: How) -> None:
    """Called once, by the frame of a process, with its settings; None, as always in production, arms nothing."""
    global _armed  # noqa: PLW0603 - it is the process that is armed, not a part of it
    _armed = None if name is None else _Armed(name, nth, how)
