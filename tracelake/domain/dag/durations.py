"""Durations as people write them: `30s`, `5m`, `1h30m`, `2d`, or a number of seconds."""

from __future__ import annotations

import re

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_SHAPE = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_NUMBER = re.compile(r"[0-9]{1,9}")


def parse_duration(text: str) -> int | None:
    """Seconds; None if it is not a duration."""
    if _NUMBER.fullmatch(text):
        return int(text)
    match = _SHAPE.fullmatch(text)
    if match is None or not text:
        return None
    return sum(int(amount) * size for amount, size in zip(match.groups(), _UNITS.values(), strict=True) if amount)


def format_duration(seconds: int) -> str:
    """The shortest text that `parse_duration` reads back."""
    parts = []
    for unit, size in _UNITS.items():
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
