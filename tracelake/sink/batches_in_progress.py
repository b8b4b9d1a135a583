"""Records in data Postgres which batches this process reads, so that the next sink knows which ones it died over.

A batch may end the whole process, for example by the memory that it takes. It is not known which of those in progress
did it: so each of them is read alone when it is delivered again. One over which sinks die repeatedly is set aside as
dead, and the others are read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

from tracelake.data.statements import statements
from tracelake.runtime.crash_points import crash_point

Connection = psycopg.Connection[Any]


@dataclass
class BatchesInProgress:
    """Used from any number of threads."""

    _readers: int = 0
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _outlived: set[UUID] = field(default_factory=set)
    """Recorded by this process, which then lost its connection."""

    def left_over(self, connection: Connection, publishes: Sequence[UUID]) -> dict[UUID, int]:
        """Those of them over which sinks have died, and how many."""
        self.release(connection, [])
        rows = connection.execute(statements("batches_in_progress")["left"], {"ids": list(publishes)}).fetchall()
        return dict(rows)

    @contextmanager
    def held(self, connection: Connection, publishes: Sequence[UUID], *, alone: bool) -> Iterator[None]:
        """They are recorded while the block runs. `alone`: nothing else is read meanwhile."""
        with self._alone() if alone else self._beside_others():
            connection.execute(statements("batches_in_progress")["take"], {"ids": list(publishes)})
            crash_point("sink.in_progress")
            try:
                yield
            finally:
                with self._lock:
                    self._outlived.update(publishes)
            self.release(connection, publishes)
            crash_point("sink.released")

    def release(self, connection: Connection, publishes: Sequence[UUID]) -> None:
        """Their outcome is known; and this process did not die over those in `_outlived`."""
        with self._lock:
            ids = [*self._outlived, *publishes]
        if ids:
            connection.execute(statements("batches_in_progress")["release"], {"ids": ids})
            with self._lock:
                self._outlived.difference_update(ids)

    def sweep(self, connection: Connection, age: timedelta) -> None:
        connection.execute(statements("batches_in_progress")["sweep"], {"age": age})

    @contextmanager
    def _beside_others(self) -> Iterator[None]:
        with self._turn:
            self._readers += 1
        try:
            yield
        finally:
            with self._turn:
                self._readers -= 1
                self._turn.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock throughout: no other read begins."""
        with self._turn:
            self._turn.wait_for(lambda: self._readers == 0)
            yield
