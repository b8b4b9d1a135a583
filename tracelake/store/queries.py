"""Named SQL: every statement lives in `sql/*.sql` under `-- name: x`, with a sentence that says what it is for.

What several statements have in common is a part: `sql/parts/y.sql` stands where one of them says `-- part: y`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "sql"
NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
PART = re.compile(r"^-- part: (\w+)$", re.MULTILINE)


@cache
def queries(file: str) -> Mapping[str, str]:
    """The statements of `sql/<file>.sql` by name."""
    _, *split = NAME.split(_whole(file))
    found = {name: statement.strip() for name, statement in zip(split[::2], split[1::2], strict=True)}
    _names.update({statement: f"{file}.{name}" for name, statement in found.items()})
    return found


def _whole(file: str) -> str:
    """Its text with the parts in it; a part may have parts too."""
    return PART.sub(lambda said: _whole(f"parts/{said[1]}").strip(), _read(file))


def _read(file: str) -> str:
    return (FOLDER / f"{file}.sql").read_text(encoding="utf-8")


_names: dict[str, str] = {}


def name_of(statement: str) -> str | None:
    """The name of a statement that was read here."""
    return _names.get(statement)
