"""Reads counters of a process."""

from __future__ import annotations

from tracelake.runtime.metrics import Metrics


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """The sum of all samples of a name that have these labels, whatever others they have."""
    return sum(
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
