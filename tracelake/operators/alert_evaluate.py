"""`alert_evaluate`: user code that evaluates alert definitions and publishes alert events.

The task gets the enabled definitions that its config names, with their parameters. The code runs in a sandbox and
publishes rows of a buffered dataset, which the sink separates by organisation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

from pydantic import Field, StringConstraints

from tracelake.domain.alerts import missing_fields
from tracelake.domain.dag.catalog import ConfigProblem, OperatorSpec, Wired, checked_by, every_input
from tracelake.domain.dag.model import Storage
from tracelake.domain.text.suggest import closest
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.outcome import OperatorConfig
from tracelake.operators.api.runtimes import IN_SANDBOXES

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]


class Config(OperatorConfig):
    definitions: Annotated[list[Name], Field(min_length=1, max_length=200)]


def check_wiring(config: Mapping[str, Any], wired: Wired) -> Sequence[ConfigProblem]:
    return [*_unknown(config["definitions"], wired), *_output(wired)]


def _unknown(names: Sequence[str], wired: Wired) -> Iterator[ConfigProblem]:
    for place, name in enumerate(names):
        if name not in wired.alerts:
            hint = closest(name, wired.alerts) or f"define it first: `trace alert create {name}`"
            yield ConfigProblem(("definitions", place), f"there is no alert {name!r}", hint, "unknown_alert")


def _output(wired: Wired) -> Iterator[ConfigProblem]:
    (declared,) = wired.written
    if declared is None:
        reason = "alert events are written into a buffered dataset that this DAG declares"
        hint = "outputs: [{dataset: alert_events}], with the block that docs/how-to/raise_alerts.md gives for `publish`"
        yield ConfigProblem((), reason, hint, "not_alert_events", within="outputs")
        return
    missing = missing_fields(declared)
    if missing:
        reason = f"the dataset cannot hold alert events: {'; '.join(missing)}"
        hint = "take the block of docs/how-to/raise_alerts.md"
        yield ConfigProblem((0,), reason, hint, "not_alert_events", within="outputs")


SPEC = OperatorSpec(
    checked_by(Config),
    IN_SANDBOXES,
    storages=(Storage.BUFFERED,),
    runs_bundle=True,
    narrows=every_input,
    check_wiring=check_wiring,
)


def run(ctx: TaskContext[Config]) -> NoReturn:
    """Raise: user code never runs in a worker, but in a runner."""
    raise WorkFailed(f"task {ctx.task.task_id} runs user code, which a worker never does", hint="start `trace runner`")
