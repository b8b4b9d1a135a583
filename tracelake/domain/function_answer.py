"""What the runner answers as a Lambda function: whether code ran, and why it failed.

An error that Lambda itself reports (`X-Amz-Function-Error`) is then always one of the runner or of its environment, and
never one that the code has raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Ending(StrEnum):
    RETURNED = "returned"
    FAILED = "failed"
    """The code failed, or was ended."""
    NOT_STARTED = "not_started"
    """By the platform's fault."""
    OTHER_ENVIRONMENT = "other_environment"
    """This environment has run code of another organisation; another one may take it."""


@dataclass(frozen=True)
class FunctionAnswer:
    ending: Ending
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def answer_from(document: object) -> FunctionAnswer | None:
    """None: it is no answer of the runner."""
    try:
        if not isinstance(document, Mapping):
            return None
        error = document["error"]
        return FunctionAnswer(Ending(document["ending"]), None if error is None else str(error))
    except (KeyError, ValueError):
        return None
