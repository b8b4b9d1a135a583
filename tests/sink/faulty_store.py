"""A store that fails in a way that nobody foresaw, for one object, as long as a file says so."""

from __future__ import annotations

from pathlib import Path

from trace_platform.adapters.objects_disk import DiskObjects
from trace_platform.domain.objects import ObjectName

POISON = "poison.jsonl"


class FaultyObjects(DiskObjects):
    @property
    def fails(self) -> Path:
        """It fails while this is there."""
        return self.root / "fails"

    def get(self, name: ObjectName) -> bytes:
        if name.name == POISON and self.fails.exists():
            raise ZeroDivisionError("a fault of ours")
        return super().get(name)
