"""The operators, found by file: a module here with a `SPEC` and a `run` is the operator of that name.

There are two kinds. An operator that runs in the Dispatcher is a pure function of the task and its state; workers can
run it too if its SPEC says so. One for workers only gets a `TaskContext`. The Dispatcher imports all of them to check
their configuration at deploy, so a module imports Spark, Arrow and the like inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import tracelake.operators as package
from tracelake.domain.dag.catalog import OperatorSpec
from tracelake.operators.api.outcome import Outcome, State
from tracelake.operators.api.runtimes import IN_DISPATCHER
from tracelake.wire.task.lifecycle import TaskPayload


@dataclass(frozen=True)
class InProcess:
    spec: OperatorSpec
    run: Callable[[TaskPayload, State | None], Outcome]
    """Pure: the same payload and state give the same outcome."""


@dataclass(frozen=True)
class WorkerOperator:
    spec: OperatorSpec
    config: type[Any]
    run: Callable[[Any], Outcome | None]
    """Called with a `TaskContext`."""


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for module_info in iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{module_info.name}")
        if hasattr(module, "SPEC"):
            yield module_info.name, module


def _is_pure(module: ModuleType) -> bool:
    return IN_DISPATCHER in module.SPEC.runtimes


_MODULES = dict(_modules())

IN_PROCESS: Mapping[str, InProcess] = {
    name: InProcess(module.SPEC, module.run) for name, module in _MODULES.items() if _is_pure(module)
}
WORKER_OPERATORS: Mapping[str, WorkerOperator] = {
    name: WorkerOperator(module.SPEC, module.Config, module.run)
    for name, module in _MODULES.items()
    if not _is_pure(module)
}


def specs() -> Mapping[str, OperatorSpec]:
    pure = {name: operator.spec for name, operator in IN_PROCESS.items()}
    return pure | {name: operator.spec for name, operator in WORKER_OPERATORS.items()}
