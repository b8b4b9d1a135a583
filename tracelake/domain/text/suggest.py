"""The word that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

MAX_LISTED = 12
"""Longer lists do not help who reads them."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean x?` for the nearest known name; else all of them, if they are few."""
    names = {name.casefold(): name for name in known}
    near = nearest(name, names.values())
    if near:
        return near
    return f"one of: {', '.join(sorted(names.values()))}" if 0 < len(names) <= MAX_LISTED else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean x?`, if one is near."""
    by_folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(name[:128].casefold(), by_folded, n=1)
    return f"did you mean {by_folded[near[0]]}?" if near else None


def snake_case(name: str) -> str | None:
    """The nearest lower snake case name; None if nothing of it is left."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[:128])
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_").lstrip("0123456789_")
    return plain or None
