"""Our refusals across the border: a Python worker's exception reaches the driver only as Spark's text of it."""

from __future__ import annotations

import re
from typing import Final

from trace_platform import errors
from trace_platform.errors import TraceError

RAISED: Final = re.compile(r"^(?:trace_platform\.errors\.)?(\w+): (.*)$", re.MULTILINE)


def typed(error: BaseException) -> TraceError | None:
    """The refusal that a worker raised, if Spark's exception tells of one."""
    if isinstance(error, TraceError):
        return error
    for name, message in RAISED.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TraceError) and kind is not errors.InvalidDag:
            return kind(message)
    return None
