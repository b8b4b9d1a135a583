"""What can go wrong, for authors: what a door refused, what must not be tried again, and that the attempt is over."""

from __future__ import annotations

import json
from typing import Any, Mapping


class Final(Exception):
    """Raise it when another try cannot help: the task fails for good."""


class Refused(Exception):
    """A door said no. The platform's own words are in it; `code` is stable."""

    def __init__(self, asked: str, status: int, error: Mapping[str, Any]) -> None:
        self.asked = asked
        self.status = status
        self.code = str(error.get("code", "unknown"))
        self.message = str(error.get("message", ""))
        self.where = error.get("where")
        self.hint = error.get("hint")
        self.retryable = bool(error.get("retryable", status >= 500))
        super().__init__(self._said())

    def _said(self) -> str:
        said = f"{self.asked} was refused ({self.status} {self.code}): {self.message}"
        if self.where:
            said += f" [at {self.where}]"
        return f"{said} -- {self.hint}" if self.hint else said


class Ended(BaseException):
    """The attempt is over, whoever is still running. Not an Exception: `except Exception` must not swallow it."""


class Canceled(Ended):
    """Somebody canceled the task."""


class LeaseLost(Ended):
    """Another attempt has taken over, or this one took too long: nothing it does counts any more."""


def refusal(asked: str, status: int, body: bytes) -> Refused:
    """From a door's answer; one that is not in its usual form is shown as it is."""
    try:
        error = json.loads(body)["error"]
        return Refused(asked, status, error)
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = body[:500].decode("utf-8", "replace")
        return Refused(asked, status, {"message": shown or "without a word", "code": "unknown"})
