"""Named SQL of data Postgres: `sql/*.sql`, each statement with a comment, as in `store/queries.py`.

Read as a package resource, because on a cluster this package is a zip file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(file: str) -> Mapping[str, bytes]:
    """Return the statements of `sql/<file>.sql` by name; parameters are psycopg's, `%(name)s`."""
    text = files("tracelake.data").joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
    _, *parts = NAME.split(text)
    return {name: part.strip().encode() for name, part in zip(parts[::2], parts[1::2], strict=True)}
