"""How a file of this machine is named to Spark, which opens it by Hadoop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

PATTERN: Final = re.compile(r"[\[\]{}*?\\]")


def hadoop_path(path: Path) -> str | None:
    """Hadoop takes a path as it stands, and knows no escapes; None if it would take this one for a pattern."""
    text = str(path.absolute())
    return None if PATTERN.search(text) else f"file://{text}"
