"""Stores that fail for one object as nobody foresaw: as long as a file says so, or with the whole process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.object_names import ObjectName

POISON = "poison.jsonl"
DEADLY = "deadly.jsonl"


class DeadlyObjects(DiskObjects):
    """Whoever reads the one object is killed, as by a kernel that has no memory left."""

    def get(self, name: ObjectName) -> bytes:
        if name.name == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get(name)


class FaultyObjects(DiskObjects):
    @property
    def fails(self) -> Path:
        """It fails while this is there."""
        return self.root / "fails"

    def get(self, name: ObjectName) -> bytes:
        if name.name == POISON and self.fails.exists():
            raise ZeroDivisionError("a fault of ours")
        return super().get(name)
