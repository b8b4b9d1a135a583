"""How long a failed delivery waits for its next attempt."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from tracelake.runtime.retry import delay_after
from tracelake.settings import DeliverySettings


def pause_before_next(attempt: int, asked_for: float | None, settings: DeliverySettings) -> float:
    """Seconds, with backoff. A longer pause that the receiver asks for is kept, up to the longest of the settings."""
    own = delay_after(attempt, settings.backoff_seconds, settings.backoff_max_seconds)
    return max(own, min(asked_for or 0.0, settings.backoff_max_seconds))


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
