"""Why a batch is refused."""

from __future__ import annotations

from typing import Final

MAX_REASON_CHARS: Final = 500


class BatchFault(Exception):
    """Why a batch is refused; `line` counts from 1: lines of JSON, rows of anything else."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason[:MAX_REASON_CHARS]
        self.line = line
