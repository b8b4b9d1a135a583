"""Named SQL: every statement lives in `sql/*.sql` under `-- name: x`, with a sentence that says what it is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def queries(file: str) -> Mapping[str, str]:
    """The statements of `sql/<file>.sql` by name."""
    _, *parts = NAME.split((FOLDER / f"{file}.sql").read_text(encoding="utf-8"))
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
