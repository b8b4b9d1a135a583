"""Values of any type as JSON has them: bytes as 0x..., decimals as text, times in ISO 8601."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    return str(value)


def _pairs(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): plain(item) for name, item in value.items()}


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bytes, lambda value: "0x" + value.hex()),
    (Decimal, lambda value: format(value, "f")),
    ((datetime, date, time), lambda value: value.isoformat()),
    (timedelta, lambda value: value.total_seconds()),
    (dict, _pairs),
    ((list, tuple), lambda value: [plain(item) for item in value]),
)
