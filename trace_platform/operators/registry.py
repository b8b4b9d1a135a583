"""The operators that need no rows, only the task and their own state: by name, what they accept and what to call.

They run in the Dispatcher itself (`runtime: dispatcher`); `noop` runs on workers as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trace_platform.contracts import TaskPayload
from trace_platform.domain.catalog import Count, OperatorSpec, checked_by
from trace_platform.domain.dag_model import SourceKind, Storage
from trace_platform.operators import noop, range_aggregator, range_splitter
from trace_platform.operators.outcome import Outcome, State

RUNTIME = "dispatcher"
WORKERS = "ecs_platform"


@dataclass(frozen=True)
class InProcess:
    spec: OperatorSpec
    run: Callable[[TaskPayload, State | None], Outcome]
    """Pure: the same payload and state give the same outcome."""


IN_PROCESS: Mapping[str, InProcess] = {
    "noop": InProcess(
        OperatorSpec(
            checked_by(noop.Config),
            frozenset({RUNTIME, WORKERS}),
            source_kinds=frozenset({SourceKind.MANUAL}),
            outputs=Count(1, None),
            storages=(Storage.PARQUET,),
        ),
        noop.run,
    ),
    "range_splitter": InProcess(
        OperatorSpec(
            checked_by(range_splitter.Config),
            frozenset({RUNTIME}),
            inputs=Count(1, 1),
            outputs=Count(1, None),
            storages=(Storage.PARQUET,),
        ),
        range_splitter.run,
    ),
    "range_aggregator": InProcess(
        OperatorSpec(
            checked_by(range_aggregator.Config),
            frozenset({RUNTIME}),
            inputs=Count(1, 1),
            outputs=Count(1, None),
            storages=(Storage.PARQUET,),
        ),
        range_aggregator.run,
    ),
}
