"""Sends the gauges that are read from the databases to a store of figures (CloudWatch), beside Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from tracelake.dispatcher.maintenance.loop import Periodic
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.ports import FigureStore
from tracelake.runtime.figures import figures_of
from tracelake.runtime.metrics import Metrics

log = structlog.get_logger()


@dataclass(frozen=True)
class PublishMetrics(Periodic):
    """A pass that the store does not take is lost: the next one has newer figures."""

    gauges: Gauges
    metrics: Metrics
    store: FigureStore
    most: int

    async def once(self) -> int:
        await self.gauges.refresh()
        figures, left_out = figures_of(self.metrics, self.most)
        if left_out:
            log.warning("gauges left out", series=left_out, because="metrics.cloudwatch_series", sent=len(figures))
        await self.store.put(figures)
        return 0
