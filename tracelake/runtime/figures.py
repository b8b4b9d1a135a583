"""Gauges as single figures, for monitoring systems that are sent them (CloudWatch) and do not scrape.

They come from the registry that Prometheus reads, so the two show the same. A system that cannot aggregate over labels
also gets a total of some gauges, without labels: alarms need one series that is always there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tracelake.domain.figure import Figure
from tracelake.runtime.metrics import Metrics

TOTALS: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    "trace_tasks_queued": sum,
    "trace_tasks_queued_oldest_seconds": lambda ages: max(ages, default=0.0),
    "trace_tasks_in_flight": sum,
    "trace_outbox_pending": sum,
    "trace_outbox_oldest_seconds": lambda ages: max(ages, default=0.0),
    "trace_outbox_dead": sum,
    "trace_buffer_batches_dead": sum,
    "trace_jobs_paused": sum,
    "trace_events_held": sum,
    "trace_queue_oldest_seconds": lambda ages: max(ages, default=0.0),
}
"""How the total of a gauge is made. Sums of others (states of a queue, limits) would mean nothing."""
WITHOUT_FIGURE: Final = frozenset({"trace_org_info"})
READ: Final = "trace_gauges_read"


def figures_of(metrics: Metrics, most: int) -> tuple[list[Figure], int]:
    """The figures that were read last, and how many more than `most` there were.

    Those of the whole system come first, then those with the largest values.
    """
    found = [
        Figure(sample.name, sample.value, sample.labels)
        for family in metrics.gauges.collect()
        for sample in family.samples
        if sample.name not in WITHOUT_FIGURE
    ]
    if Figure(READ, 1.0) in found:
        found += [_total(name, found) for name in TOTALS]
    found.sort(key=lambda figure: ("org" in figure.labels, bool(figure.labels), -figure.value))
    return found[:most], max(0, len(found) - most)


def _total(name: str, figures: Sequence[Figure]) -> Figure:
    return Figure(name, float(TOTALS[name](figure.value for figure in figures if figure.name == name)))
