"""How much processor time the parts took: what stays comparable when others use the machine too."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.rig import Rig

TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def cpu_seconds(system: Rig) -> Iterator[dict[str, float]]:
    """Seconds of Dispatcher, Postgres and this process during the block; filled in at its end."""
    taken: dict[str, float] = {}
    before = _now(system)
    yield taken
    taken.update({name: seconds - before[name] for name, seconds in _now(system).items()})


def per_task_ms(taken: dict[str, float], tasks: int) -> dict[str, float]:
    return {name: round(1000 * seconds / tasks, 3) for name, seconds in taken.items()}


def _now(system: Rig) -> dict[str, float]:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    assert system.server.process is not None
    return {
        "dispatcher": _own(system.dispatcher.pid),
        "postgres": _with_children(system.server.process.pid),
        "client": mine.ru_utime + mine.ru_stime,
    }


def below(pid: int) -> dict[int, tuple[str, float]]:
    """Every process that this one started, and those below them: the program's name, and seconds so far."""
    found: dict[int, tuple[str, float]] = {}
    for child in _children(pid):
        try:
            program = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode()
            found[child] = (Path(program).name, _own(child))
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= below(child)
    return found


def _own(pid: int) -> float:
    return sum(map(int, _fields(pid)[11:13])) / TICKS


def _with_children(pid: int) -> float:
    """A server with its backends: those that live, and those that have ended and were waited for."""
    ended = sum(map(int, _fields(pid)[13:15])) / TICKS
    return _own(pid) + ended + sum(_own(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int(_fields(int(entry.name))[1]) == pid:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _fields(pid: int) -> list[str]:
    """What `/proc/<pid>/stat` says after the name: state, parent, ..., user and system time at 11 and 12."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
