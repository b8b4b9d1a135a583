"""Fields of a job that change how its tasks are run, and nothing of what they write, each with another value."""

from __future__ import annotations

from typing import Any, Final

from tracelake.domain.dag.model import Activation, Retry, Scaling
from tracelake.domain.flow.pressure import Priority
from tracelake.domain.ids import JobName

HOW_IT_RUNS: Final[dict[str, Any]] = {
    "name": JobName("renamed"),
    "activation": Activation.SOURCE,  # what it is decided by is the source
    "idle_timeout_seconds": 5,
    "scaling": Scaling(1),
    "priority": Priority.BULK,
    "max_queue_depth": 5,
    "max_queue_age_seconds": 5,
    "resume_queue_depth": 5,
    "resume_queue_age_seconds": 5,
    "timeout_seconds": 5,
    "heartbeat_timeout_seconds": 5,
    "heartbeat_interval_seconds": 1,
    "max_attempts": 9,
    "max_platform_failures": 9,
    "retry": Retry(1, 2),
    "replay": True,
    "cutover": {"max_missing_keys": 0},
}
