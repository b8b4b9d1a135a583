"""How late the machine is: what a test may add to a limit that the product keeps on a machine that has time for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

NAP_SECONDS: Final = 0.02


@dataclass
class Lateness:
    """By how much a thread that only sleeps woke up too late, added up."""

    seconds: float = 0.0


@contextmanager
def measured_lateness() -> Iterator[Lateness]:
    late, over = Lateness(), threading.Event()

    def sleep() -> None:
        last = time.monotonic()
        while not over.wait(NAP_SECONDS):
            now = time.monotonic()
            late.seconds += max(0.0, now - last - NAP_SECONDS)
            last = now

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    try:
        yield late
    finally:
        over.set()
        sleeper.join()
