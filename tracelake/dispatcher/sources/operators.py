"""Whether what fires a source is a task of it, or only an event for each of its outputs."""

from __future__ import annotations

from tracelake.dispatcher.dags.catalog import operators


def makes_task(operator: str) -> bool:
    spec = operators().get(operator)
    return spec is None or not spec.forwards
