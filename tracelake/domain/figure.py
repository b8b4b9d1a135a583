"""A figure for a monitoring system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """A gauge at one moment."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
