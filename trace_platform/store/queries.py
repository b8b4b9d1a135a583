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
    found = {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
    _names.update({text: f"{file}.{name}" for name, text in found.items()})
    return found


_names: dict[str, str] = {}


def name_of(statement: str) -> str | None:
    """The name of a statement that was read here."""
    return _names.get(statement)
