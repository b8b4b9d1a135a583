"""Reads request and response vectors: lines `>>` and `<<`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def exchanges(folder: Path) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, request and response of each file."""
    found = []
    for path in sorted(folder.glob("*.io")):
        lines = path.read_text().splitlines()
        request = next(json.loads(line[3:]) for line in lines if line.startswith(">>"))
        response = next(json.loads(line[3:]) for line in lines if line.startswith("<<"))
        found.append((path.stem, request, response))
    return found
