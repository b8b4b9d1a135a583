"""Reads gauges from the databases for Prometheus: depth and age of queues, lags, failed entries.

One statement per table, on indexes of live rows, at most once in `FRESH_SECONDS` however often it is called: scrapes
cannot load the database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import asyncpg
import structlog

from tracelake.dispatcher.flow.list_in_flight import PoolRow
from tracelake.domain.flow.tiers import queue_names
from tracelake.errors import Unavailable
from tracelake.ports import Queue
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.tracing import span
from tracelake.settings import RuntimeSettings
from tracelake.store.db import OUTAGES
from tracelake.store.queries import Row, fetch_row, fetch_rows, queries

log = structlog.get_logger()

FRESH_SECONDS = 5.0
TIMEOUT_SECONDS = 8.0
"""Less than the scrape time-out of Prometheus: counters of this process are exported whatever the databases do."""

Samples = dict[str, list[tuple[Sequence[str], float]]]


class Lags(Row, frozen=True):
    lease: float
    retry: float


class Gauges:
    def __init__(
        self,
        pool: asyncpg.Pool,
        queue: Queue,
        runtimes: Mapping[str, RuntimeSettings],
        metrics: Metrics,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._pool, self._queue, self._metrics = pool, queue, metrics
        names = [runtime.queue for runtime in runtimes.values() if runtime.queue]
        self._queue_names = queue_names(names)
        self._fresh_seconds = fresh_seconds
        self._read_at = -fresh_seconds
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Never raises: gauges that cannot be read are left out, and a warning is logged."""
        async with self._lock:
            if time.monotonic() - self._read_at < self._fresh_seconds:
                return
            self._metrics.gauges.put(await self._read())
            self._read_at = time.monotonic()

    async def _read(self) -> Samples:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                with span("gauges"):
                    return {
                        **await self._state(),
                        **await self._orgs(),
                        **await self._rpc_pools(),
                        **await self._queues(),
                        "trace_gauges_read": [((), 1.0)],
                    }
        except (*OUTAGES, Unavailable) as outage:
            log.warning("gauges cannot be read", because=str(outage) or type(outage).__name__)
            return {"trace_gauges_read": [((), 0.0)]}

    async def _state(self) -> Samples:
        pool, sql = self._pool, queries("gauges")
        queued = await pool.fetch(sql["queued"])
        pending, dead = await pool.fetch(sql["outbox_pending"]), await pool.fetch(sql["outbox_dead"])
        lags = await fetch_row(pool, sql["lags"], Lags)
        batches_dead = await pool.fetch(sql["batches_dead"])
        sources, in_flight = await pool.fetch(sql["sources"]), await pool.fetch(sql["in_flight"])
        paused, held = await pool.fetch(sql["paused"]), await pool.fetch(sql["held"])
        return {
            "trace_tasks_queued": [((org, dag, job), depth) for org, dag, job, depth, _ in queued],
            "trace_tasks_queued_oldest_seconds": [((org, dag, job), age) for org, dag, job, _, age in queued],
            "trace_tasks_in_flight": [
                ((org, operator, runtime, state), count) for org, operator, runtime, state, count in in_flight
            ],
            "trace_outbox_pending": [((kind,), depth) for kind, depth, _ in pending],
            "trace_outbox_oldest_seconds": [((kind,), age) for kind, _, age in pending],
            "trace_outbox_dead": [((org, kind), count) for org, kind, count in dead],
            "trace_lease_lag_seconds": [((), lags.lease)],
            "trace_retry_lag_seconds": [((), lags.retry)],
            "trace_buffer_batches_dead": [((org,), count) for org, count in batches_dead],
            "trace_sources": [((org, state), count) for org, state, count in sources],
            "trace_jobs_paused": [((org, dag, job, reason), 1.0) for org, dag, job, reason in paused],
            "trace_events_held": [((org, dag, job), count) for org, dag, job, count in held],
        }

    async def _orgs(self) -> Samples:
        pool, sql = self._pool, queries("gauges")
        return {
            "trace_org_info": [((org, name), 1.0) for org, name in await pool.fetch(sql["orgs"])],
            "trace_org_limit": [((org, limit), most) for org, limit, most in await pool.fetch(sql["org_limits"])],
            "trace_org_object_bytes": [((org,), size) for org, size in await pool.fetch(sql["org_storage"])],
        }

    async def _rpc_pools(self) -> Samples:
        pools = await fetch_rows(self._pool, queries("rpc_shares")["list_pools"], PoolRow)
        rates = [(row.pool, row.leased_rate or 0.0, row.limit_rate) for row in pools if row.limit_rate is not None]
        return {
            "trace_rpc_pool_requests": [
                ((row.pool, state), getattr(row, state)) for row in pools for state in ("used", "leased", "limit")
            ],
            "trace_rpc_pool_calls_per_second": [
                ((pool, state), rate)
                for pool, leased, limit in rates
                for state, rate in (("leased", leased), ("limit", limit))
            ],
            "trace_rpc_pool_workers": [((row.pool,), row.workers) for row in pools],
        }

    async def _queues(self) -> Samples:
        messages: list[tuple[Sequence[str], float]] = []
        oldest: list[tuple[Sequence[str], float]] = []
        for queue in self._queue_names:
            depth = await self._queue.depth(queue)
            messages += [((queue, state), getattr(depth, state)) for state in ("ready", "in_flight", "delayed", "dead")]
            oldest.append(((queue,), depth.oldest_age_seconds))
        return {"trace_queue_messages": messages, "trace_queue_oldest_seconds": oldest}
