"""Chance that is the same everywhere and always: a stream of bytes made from what it is for."""

from __future__ import annotations

from hashlib import shake_128


class Draw:
    def __init__(self, *purpose: object, size: int = 256) -> None:
        self._bytes = shake_128(repr(purpose).encode()).digest(size)
        self._at = 0

    def below(self, limit: int) -> int:
        return int.from_bytes(self.take(6), "big") % limit

    def share(self) -> float:
        """0 up to, not including, 1."""
        return int.from_bytes(self.take(6), "big") / (1 << 48)

    def take(self, size: int) -> bytes:
        taken = self._bytes[self._at : self._at + size]
        self._at += size
        if len(taken) < size:
            raise AssertionError("a stream of chance was made too short")
        return taken
