"""What the databases say when Prometheus asks: depth and age of queues, lags, what was given up.

One statement for each table, on indexes of live rows, and at most once in some seconds however many ask: who scrapes
cannot load the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.drain import BUFFER_QUEUE
from tracelake.errors import Unavailable
from tracelake.runtime.tracing import span
from tracelake.store.db import OUTAGES
from tracelake.store.queries import queries

log = structlog.get_logger()

FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 8.0
"""Less than Prometheus waits for a scrape: what is counted in this process is told whatever the databases do."""

Samples = dict[str, list[tuple[Sequence[str], float]]]


class Gauges:
    def __init__(self, control: Control, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._control = control
        self._fresh_seconds = fresh_seconds
        self._read_at = -fresh_seconds
        self._one = asyncio.Lock()

    async def refresh(self) -> None:
        """Never raises: figures that cannot be read are left out, and that is said."""
        async with self._one:
            if time.monotonic() - self._read_at < self._fresh_seconds:
                return
            self._control.metrics.told.put(await self._read())
            self._read_at = time.monotonic()

    async def _read(self) -> Samples:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                with span("gauges"):
                    return {
                        **await self._state(),
                        **await self._queues(),
                        "trace_gauges_read": [((), 1.0)],
                    }
        except (*OUTAGES, Unavailable) as away:
            log.warning("gauges cannot be read", because=str(away) or type(away).__name__)
            return {"trace_gauges_read": [((), 0.0)]}

    async def _state(self) -> Samples:
        pool, sql = self._control.pool, queries("gauges")
        queued = await pool.fetch(sql["queued"])
        owed, dead = await pool.fetch(sql["outbox_owed"]), await pool.fetch(sql["outbox_dead"])
        lags = await pool.fetchrow(sql["lags"])
        sources = await pool.fetch(sql["sources"])
        assert lags is not None  # noqa: S101 - a SELECT of scalars always has its row
        return {
            "trace_tasks_queued": [((r["org"], r["dag"], r["job"]), r["depth"]) for r in queued],
            "trace_tasks_queued_oldest_seconds": [((r["org"], r["dag"], r["job"]), r["oldest"]) for r in queued],
            "trace_outbox_pending": [((r["kind"],), r["depth"]) for r in owed],
            "trace_outbox_oldest_seconds": [((r["kind"],), r["oldest"]) for r in owed],
            "trace_outbox_dead": [((r["kind"],), r["dead"]) for r in dead],
            "trace_lease_lag_seconds": [((), lags["lease"])],
            "trace_retry_lag_seconds": [((), lags["retry"])],
            "trace_buffer_batches_dead": [((), lags["batches_dead"])],
            "trace_sources": [((r["state"],), r["count"]) for r in sources],
        }

    async def _queues(self) -> Samples:
        messages: list[tuple[Sequence[str], float]] = []
        oldest: list[tuple[Sequence[str], float]] = []
        for queue in [*(runtime.queue for runtime in self._control.runtimes.values() if runtime.queue), BUFFER_QUEUE]:
            found = await self._control.queue.depth(queue)
            messages += [((queue, state), getattr(found, state)) for state in ("ready", "in_flight", "delayed", "dead")]
            oldest.append(((queue,), found.oldest_age_seconds))
        return {"trace_queue_messages": messages, "trace_queue_oldest_seconds": oldest}
