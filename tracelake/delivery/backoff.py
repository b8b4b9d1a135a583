"""How long a failed delivery waits for its next attempt."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tracelake.domain.task import Backoff, retry_delay
from tracelake.settings import DeliverySettings

_chance = random.Random()  # noqa: S311 - spreads retries, guards nothing


def pause_before_next(attempt: int, asked_for: float | None, told: DeliverySettings) -> float:
    """Seconds; doubles with each attempt, with jitter. What the receiver asks for counts, up to our longest wait."""
    own = retry_delay(attempt, Backoff(told.backoff_seconds, told.backoff_max_seconds), _chance.random())
    return max(own, min(asked_for or 0.0, told.backoff_max_seconds))


def retry_after(header: str | None, now: datetime) -> float | None:
    """The seconds that `Retry-After` asks for, in either of its forms; None if it asks for nothing that makes sense."""
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdecimal():
        return float(header.strip()[:9])
    try:
        at = parsedate_to_datetime(header)
    except (ValueError, TypeError, OverflowError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())
