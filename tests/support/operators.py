"""Operators of a test's own: known as those are whose files lie in `tracelake/operators/`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from tracelake.domain.dag.catalog import OperatorSpec
from tracelake.operators.api.outcome import OperatorConfig, Outcome
from tracelake.operators.registry import WORKER_OPERATORS, WorkerOperator


def register(name: str, spec: OperatorSpec) -> None:
    """For the life of this process: a DAG may name it; a worker of this process cannot run it."""
    cast("dict[str, WorkerOperator]", WORKER_OPERATORS)[name] = WorkerOperator(spec, OperatorConfig, _not_here)


@contextmanager
def registered(**specs: OperatorSpec) -> Iterator[None]:
    """For as long as the block lasts."""
    before = dict(WORKER_OPERATORS)
    for name, spec in specs.items():
        register(name, spec)
    try:
        yield
    finally:
        known = cast("dict[str, WorkerOperator]", WORKER_OPERATORS)
        for name in specs:
            known.pop(name)
            known.update({name: before[name]} if name in before else {})


def _not_here(_: Any) -> Outcome | None:
    raise AssertionError("this operator is known by its specification only, and nobody is to run it")
