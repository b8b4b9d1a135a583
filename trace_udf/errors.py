"""The errors: a refused call, a permanent failure, and the end of the attempt."""

from __future__ import annotations

import json
from typing import Any, Mapping


class Final(Exception):
    """Raise it when a retry cannot help: the task fails permanently."""


class Refused(Exception):
    """A call was refused, with the platform's message; `code` is stable."""

    def __init__(self, asked: str, status: int, error: Mapping[str, Any]) -> None:
        self.asked = asked
        self.status = status
        self.code = str(error.get("code", "unknown"))
        self.message = str(error.get("message", ""))
        self.where = error.get("where")
        self.hint = error.get("hint")
        self.retryable = bool(error.get("retryable", status >= 500))
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.asked} was refused ({self.status} {self.code}): {self.message}"
        if self.where:
            text += f" [at {self.where}]"
        return f"{text} -- {self.hint}" if self.hint else text


class Ended(BaseException):
    """The attempt is over. Not an Exception: `except Exception` must not swallow it."""


class Canceled(Ended):
    """The task was canceled."""


class LeaseLost(Ended):
    """Another attempt has taken over, or this one took too long: its writes are refused."""


def refusal(asked: str, status: int, body: bytes) -> Refused:
    """The error in a response; a response in another form is shown as it is."""
    try:
        error = json.loads(body)["error"]
        return Refused(asked, status, error)
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = body[:500].decode("utf-8", "replace")
        return Refused(asked, status, {"message": shown or "without a word", "code": "unknown"})
