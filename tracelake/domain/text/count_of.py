"""Counts in sentences."""

from __future__ import annotations


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """`1 event`, `2,000 events`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
