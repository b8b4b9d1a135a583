"""JSON that can be read in one way only.

Two parsers may keep different ones of two equal keys, and round a number differently. What is signed must
not depend on who reads it, so a repeated key is refused, and so is every number that is not whole.
"""

from __future__ import annotations

import json
from typing import Any

from tracelake.capability.refusal import Reason, TokenRefused


def read_object(text: bytes) -> dict[str, Any]:
    """One JSON object, or TokenRefused."""
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_each_once, parse_float=_no_number, parse_constant=_no_number
        )
    except (ValueError, RecursionError):
        raise TokenRefused(Reason.MALFORMED) from None
    if not isinstance(value, dict):
        raise TokenRefused(Reason.MALFORMED)
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise TokenRefused(Reason.REPEATED_KEY)
    return found


def _no_number(text: str) -> Any:
    raise ValueError(text)
