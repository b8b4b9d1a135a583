"""The log files of the processes that `trace up` keeps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TAIL_BYTES = 64 * 1024


def rotate_log(log: Path, megabytes: int) -> None:
    """Copy and empty: the child goes on writing to the same open file, which is in append mode."""
    try:
        if log.stat().st_size > megabytes * 1_000_000:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
    except OSError:
        return


def last_lines(log: Path, count: int) -> str:
    """Empty where there is no log to read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.strip().splitlines()[-count:])
