"""The one library of test helpers: servers, systems, child processes, waiting, faults and data.

CONTRIBUTING.md says which helper to take for which kind of test.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The checkout."""


def checkouts() -> Iterator[Path]:
    """The current one, and the one that it is a worktree of."""
    yield ROOT
    asked = ["git", "-C", str(ROOT), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        yield Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()).parent
