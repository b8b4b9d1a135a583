"""Holds threads where they call a method, until a test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.waiting import SECONDS, until


@dataclass(frozen=True)
class Pause:
    _called: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)

    async def reached(self) -> None:
        """Wait until a thread is held."""
        await until(self._called.is_set, "the method is called")

    def end(self) -> None:
        self._over.set()

    def hold(self) -> None:
        self._called.set()
        assert self._over.wait(SECONDS)


@contextmanager
def paused(monkeypatch: pytest.MonkeyPatch, kind: type, method: str) -> Iterator[Pause]:
    """Hold each call of this method that begins inside the block, until its end."""
    pause, call = Pause(), getattr(kind, method)

    def held(*given: Any, **more: Any) -> Any:
        pause.hold()
        return call(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(kind, method, held)
        try:
            yield pause
        finally:
            pause.end()
