"""Starts a child process that cannot outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Launch:
    """What to start, with everything that the child gets."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdin: bytes = b""
    """Passed on standard input and nowhere else: secrets go here, never in `argv`, `env` or a file."""
    user: int | None = None
    group: int | None = None
    orphan_signal: signal.Signals = signal.SIGKILL
    """The signal that the kernel sends the child when its parent dies."""
    keep_fds: Sequence[int] = field(default=())


def spawn(launch: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own (so that its descendants can be found), tied to the life of this process.

    Call it from a thread that lives as long as the process: the kernel's parent-death signal follows the thread.
    """
    with warnings.catch_warnings():
        # Python 3.12 and later warn of forks in a process with threads: ours runs one system call and no Python locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = _start(launch, log)
    _write_stdin(process, launch.stdin)
    return process


def _start(launch: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        launch.argv,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=launch.cwd,
        env=dict(launch.env),
        user=launch.user,
        group=launch.group,
        extra_groups=None if launch.user is None else [],
        start_new_session=True,
        pass_fds=tuple(launch.keep_fds),
        preexec_fn=die_with_parent(launch.orphan_signal),  # noqa: PLW1509 - one system call, no locks, no imports
    )


def die_with_parent(orphan_signal: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`, which runs after the change of user: that would clear the setting."""
    parent = os.getpid()

    def tie() -> None:
        if _libc is not None:
            _libc.prctl(PR_SET_PDEATHSIG, int(orphan_signal), 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and here
            os._exit(1)

    return tie


def _write_stdin(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - PIPE above
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended before it read: see its exit code and log
