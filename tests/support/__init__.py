"""The one library of test helpers: servers, systems, child processes, waiting, faults and data.

CONTRIBUTING.md says which helper to take for which kind of test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The checkout."""
