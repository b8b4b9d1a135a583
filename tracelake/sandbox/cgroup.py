"""Groups of processes whose memory and cores the kernel limits, where this process may make such groups.

Of version 1 that is root, where the controllers `cpu` and `memory` are mounted; of version 2 whoever may make a folder
in `/sys/fs/cgroup`, if both controllers are enabled for its folders. Elsewhere there are none, and the caller limits
its processes by other means.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

ROOT: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("cpu", "memory")
PERIOD: Final = 100_000
"""Microseconds in which a group may use its share of the cores."""
PROCESSES: Final = "cgroup.procs"


@dataclass(frozen=True)
class Cgroups:
    """Where groups are made, and how their names begin: the same for all of one owner."""

    folders: tuple[Path, ...]
    prefix: str

    def make(self, *, memory_bytes: int, cpus: float) -> Cgroup | None:
        """Return a new group; None where the kernel refuses it."""
        name = f"{self.prefix}{uuid4().hex[:12]}"
        group = Cgroup(tuple(folder / name for folder in self.folders))
        try:
            group.create(memory_bytes, cpus)
        except OSError:
            group.remove()
            return None
        return group

    def remove_empty(self) -> None:
        """Remove the groups that an owner left who was killed; the kernel keeps those that have processes."""
        for folder in self.folders:
            for left in folder.glob(f"{self.prefix}*"):
                with suppress(OSError):
                    left.rmdir()


@dataclass(frozen=True)
class Cgroup:
    """A group: one folder a controller, or one for both."""

    folders: tuple[Path, ...]

    def create(self, memory_bytes: int, cpus: float) -> None:
        for folder in self.folders:
            folder.mkdir()
            for file, value in _limits(folder, memory_bytes, cpus).items():
                (folder / file).write_text(value)

    def entrances(self) -> list[int]:
        """Open files: a process that writes 0 into each of them is in the group, and so is all that it starts."""
        return [os.open(folder / PROCESSES, os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders]

    def was_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of it because its memory was used up."""
        for folder in self.folders:
            for file in ("memory.oom_control", "memory.events"):
                with suppress(OSError):
                    words = (folder / file).read_text().split()
                    return int(words[words.index("oom_kill") + 1]) > 0 if "oom_kill" in words else False
        return False

    def remove(self) -> None:
        """When its processes have ended."""
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


def find_cgroups(owner: str, root: Path = ROOT) -> Cgroups | None:
    """Return where groups can be made; None: nowhere. `owner`: the same after a restart, and no other process's."""
    prefix = f"trace-{hashlib.sha256(owner.encode()).hexdigest()[:10]}-"
    found = Cgroups(_folders(root), prefix)
    group = found.make(memory_bytes=64 * 1024 * 1024, cpus=1.0) if found.folders else None
    if group is None:
        return None
    group.remove()
    return found


def _folders(root: Path) -> tuple[Path, ...]:
    with suppress(OSError):
        enabled: Sequence[str] = (root / "cgroup.subtree_control").read_text().split()
        return (root,) if set(CONTROLLERS) <= set(enabled) else ()
    folders = tuple(root / controller for controller in CONTROLLERS)
    return folders if all((folder / PROCESSES).exists() for folder in folders) else ()


def _limits(folder: Path, memory_bytes: int, cpus: float) -> dict[str, str]:
    """A group weighs as much as that many threads outside: by default it weighs as one, however many it has."""
    quota = str(round(cpus * PERIOD))
    if folder.parent.name in CONTROLLERS:
        version_1 = {
            "cpu": {
                "cpu.cfs_period_us": str(PERIOD),
                "cpu.cfs_quota_us": quota,
                "cpu.shares": str(max(2, round(cpus * 1024))),
            },
            "memory": {"memory.limit_in_bytes": str(memory_bytes)},
        }
        return version_1[folder.parent.name]
    weight = str(min(10_000, max(1, round(cpus * 100))))
    return {
        "cpu.max": f"{quota} {PERIOD}",
        "cpu.weight": weight,
        "memory.max": str(memory_bytes),
        "memory.swap.max": "0",
    }
