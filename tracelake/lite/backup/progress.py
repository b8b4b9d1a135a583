"""Shows what a backup does, and stops it when nobody wants it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PAUSE_SECONDS: Final = 0.25


class Canceled(Exception):
    """The caller no longer wants what is being made."""


@dataclass(frozen=True)
class BackupProgress:
    note: Callable[[str], None]
    canceled: threading.Event

    def stop_if_canceled(self) -> None:
        if self.canceled.is_set():
            raise Canceled

    def pause(self, reason: str) -> None:
        """Waits a moment before something is tried again."""
        self.note(reason)
        self.canceled.wait(PAUSE_SECONDS)
        self.stop_if_canceled()
