"""`noop`: forwards events. A joint between DAGs, a target for triggers, a source of events for tests."""

from __future__ import annotations

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by
from tracelake.domain.dag.model import FIRED, Storage
from tracelake.domain.event import LabelScope, RangeScope
from tracelake.operators.api.outcome import OperatorConfig, Outcome, State, events_for, invalidations_for, scope_of
from tracelake.operators.api.runtimes import IN_DISPATCHER, ON_WORKERS
from tracelake.wire.task.lifecycle import TaskPayload


class Config(OperatorConfig):
    pass


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({IN_DISPATCHER, ON_WORKERS}),
    source_kinds=FIRED,
    forwards=True,
    outputs=Count(1, None),
    storages=(Storage.PARQUET,),
)


def run(task: TaskPayload, state: State | None) -> Outcome:  # noqa: ARG001 - it has no state
    """Make an event for each output, with the scope of the task."""
    scope = scope_of(task)
    if task.invalidation_id is not None and isinstance(scope, RangeScope | LabelScope):
        part = scope.span if isinstance(scope, RangeScope) else scope.label
        return Outcome(invalidations=invalidations_for(task, [part]))
    return Outcome(events_for(task, [scope]))
