"""Replicas wake each other by LISTEN and NOTIFY, so that work which one wrote and is too busy for is done by another.

NOTIFY takes a lock of the whole cluster when it commits, so the statements of the hot path do not use it; the loops of
the writer are signalled within microseconds anyway. It is sent after the commit, only when no loop of this process took
the signal (`dispatcher/signal.py`), and at most twenty times a second. If it is lost, the next scheduled
pass of the loops finds the work. Tasks that were ended or held (`tasks/stop_signals.py`) are always announced: their
workers may wait at any replica.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg

from tracelake.dispatcher.maintenance.loop import stopped
from tracelake.dispatcher.signal import AfterCommit, Changed, Signal
from tracelake.dispatcher.tasks.stop_signals import Stops
from tracelake.runtime.postgres import listen, pool_connection
from tracelake.store.db import OUTAGES
from tracelake.store.queries import queries

CHANNEL = "trace_control"
"""The payload is `<signal>` or `<signal> <replica>`; by hand: `NOTIFY trace_control, 'outbox'`."""


class ListenForReplicas:
    """A connection that listens: notifications wake the local signals, and signals that no loop took are sent."""

    def __init__(self, pool: asyncpg.Pool, after: AfterCommit, replica: str) -> None:
        self._pool, self._replica, self._metrics = pool, replica, after.metrics
        self._signals: dict[str, Signal | Stops | Changed] = {
            "outbox": after.outbox,
            "leases": after.leases,
            "flow": after.flow,
            "sources": after.sources,
            "catch_up": after.catch_up,
            "backfills": after.backfills,
            "stops": after.stops,
            "schedules": after.schedules,
            "comparisons": after.comparisons,
            "service_tokens": after.service_tokens,
        }
        self._sending: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for name, signal in self._signals.items():
            signal.notify_replicas(lambda name=name: self._notify(name))  # type: ignore[misc]
        self._listening = asyncio.create_task(
            listen(lambda: pool_connection(self._pool), CHANNEL, self._on_notification, self._show_status)
        )

    async def stop(self) -> None:
        for signal in self._signals.values():
            signal.notify_replicas(None)
        for task in (*self._sending, self._listening):
            if task is not None:
                await stopped(task)

    def _notify(self, signal: str) -> None:
        task = asyncio.create_task(self._send(signal))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, signal: str) -> None:
        with suppress(*OUTAGES, asyncpg.PostgresError):  # the next pass of the loops finds the work
            await self._pool.execute(queries("wake")["notify"], CHANNEL, f"{signal} {self._replica}")
            self._metrics.wakes.labels(signal, "sent").inc()

    def _show_status(self, is_listening: bool) -> None:
        self._metrics.listening.set(is_listening)

    def _on_notification(self, payload: str | None) -> None:
        """None: any may have been missed."""
        if payload is None:
            for missed in self._signals.values():
                missed.wake()
            return
        name, _, replica = payload.partition(" ")
        signal = self._signals.get(name)
        if signal is not None and replica != self._replica:
            signal.wake()
            self._metrics.wakes.labels(name, "received").inc()
