"""`udf`: runs a bundle of user code, in a sandbox that reaches only the task listeners.

The code reads by SQL, publishes rows to buffered datasets, and sends events (`docs/how-to/write_a_function.md`). Its
configuration is any JSON object.
"""

from __future__ import annotations

from typing import NoReturn

from pydantic import BaseModel, ConfigDict

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by, every_input
from tracelake.domain.dag.model import FIRED, Storage
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.runtimes import IN_SANDBOXES


class Config(BaseModel):
    """Passed to the function unchanged."""

    model_config = ConfigDict(extra="allow", frozen=True)


SPEC = OperatorSpec(
    checked_by(Config),
    IN_SANDBOXES,
    source_kinds=FIRED,
    outputs=Count(0, None),
    storages=(Storage.PARQUET, Storage.BUFFERED),
    runs_bundle=True,
    narrows=every_input,
)


def run(ctx: TaskContext[Config]) -> NoReturn:
    """Raise: user code never runs in a worker, but in a runner (`trace runner`)."""
    raise WorkFailed(f"task {ctx.task.task_id} runs user code, which a worker never does", hint="start `trace runner`")
