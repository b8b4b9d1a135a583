"""`noop`: passes on what it hears. A joint between DAGs, a target for triggers, a source of events for tests."""

from __future__ import annotations

from trace_platform.contracts import TaskPayload
from trace_platform.domain.event import RangeScope
from trace_platform.operators.outcome import Outcome, Settings, State, retract, scope_of, tell


class Config(Settings):
    pass


def run(task: TaskPayload, state: State | None) -> Outcome:  # noqa: ARG001 - it remembers nothing
    """One event for each output, about the same part as the one that came."""
    scope = scope_of(task)
    if task.invalidation_id is not None and isinstance(scope, RangeScope):
        return Outcome(invalidations=retract(task, [scope.span]))
    return Outcome(tell(task, [scope]))
