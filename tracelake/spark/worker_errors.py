"""Our refusals across the border: a Python worker's exception reaches the driver only as Spark's text of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tracelake import errors
from tracelake.errors import PLATFORM_KINDS, TraceError, WorkFailed

RAISED: Final = re.compile(r"^(?:tracelake\.errors\.)?(\w+): (.*)$", re.MULTILINE)


def typed(error: BaseException) -> TraceError | None:
    """The refusal that a worker raised, if Spark's exception tells of one."""
    if isinstance(error, TraceError):
        return error
    for name, message in RAISED.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TraceError) and kind is not errors.InvalidDag:
            return kind(message)
    return None


def rebuilt(told: Mapping[str, Any]) -> TraceError:
    """A refusal that a worker reported as `as_dict`: the platform's fault as its own kind, any other as the job's.

    The kind is what a failed attempt is counted by: a full disk must not use up the job's attempts.
    """
    kind = PLATFORM_KINDS.get(told["code"])
    if kind is None:
        return WorkFailed(told["message"], where=told["where"], hint=told["hint"], retryable=told["retryable"])
    refusal = kind(told["message"], where=told["where"])
    refusal.hint = told["hint"]
    refusal.retryable = told["retryable"]
    return refusal
