"""Log files of the processes under `trace up`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TAIL_BYTES = 64 * 1024


def rotate_log(log: Path, megabytes: int) -> None:
    """Copies and truncates the file: the child keeps it open, in append mode."""
    try:
        if log.stat().st_size > megabytes * 1_000_000:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
    except OSError:
        return


def last_lines(log: Path, count: int) -> str:
    """Empty if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-count:])
