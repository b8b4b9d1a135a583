"""`noop`: passes on what it hears. A joint between DAGs, a target for triggers, a source of events for tests."""

from __future__ import annotations

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import SourceKind, Storage
from tracelake.domain.event import RangeScope
from tracelake.operators.api.outcome import Outcome, Settings, State, retract, scope_of, tell
from tracelake.operators.api.runtimes import IN_DISPATCHER, ON_WORKERS
from tracelake.wire.task_messages import TaskPayload


class Config(Settings):
    pass


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER, ON_WORKERS}),
    source_kinds=frozenset({SourceKind.MANUAL}),
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(task: TaskPayload, state: State | None) -> Outcome:  # noqa: ARG001 - it remembers nothing
    """One event for each output, about the same part as the one that came."""
    scope = scope_of(task)
    if task.invalidation_id is not None and isinstance(scope, RangeScope):
        return Outcome(invalidations=retract(task, [scope.span]))
    return Outcome(tell(task, [scope]))
