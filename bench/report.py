"""The one line that every benchmark ends with."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any


def report(bench: str, value: float, unit: str, **more: Any) -> None:
    """Print the figure, the ratios by name, the settings, and what machine it was."""
    print(json.dumps({"bench": bench, "value": round(value, 3), "unit": unit, **more, "machine": machine()}))


def machine() -> dict[str, Any]:
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()[:2]],
        "memory_gb": round(int(memory.split()[1]) / 1e6, 1),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
