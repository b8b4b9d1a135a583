"""The Query service's Spark: started when it is first needed or after a delay, and again after it was lost.

A query may end the JVM (a text of many gigabytes does, whatever limits say): then it and the queries beside it are run
once more on a new JVM, and refused as retryable if that one ends too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import structlog

from tracelake.query.spark.sessions import Sessions
from tracelake.settings import Settings
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.owner import SparkOwner, options_for

log = structlog.get_logger()

MEGABYTE = 1024 * 1024
BATCH_BYTES = 8 * MEGABYTE
"""Size of the batches in which rows come to the check that counts them."""
SMALL_HEAP = 2 * 1024 * MEGABYTE
"""Below this size the serial collector, which stops all threads for milliseconds, does less work than Java's own."""


class QuerySpark:
    """The sessions of this process's own JVM. Belongs to one event loop."""

    def __init__(self, owner: SparkOwner, kept: int) -> None:
        self._owner = owner
        self._kept = kept
        self._sessions: Sessions | None = None
        self._starting: asyncio.Task[Sessions] | None = None
        self._turn = asyncio.Lock()
        """Held while the JVM is started or ended."""

    async def sessions(self) -> Sessions:
        """Return the sessions of a running JVM, which is started first if there is none.

        The start is a task of its own: a caller that is cancelled does not end it for the others that wait.
        """
        if self._sessions is not None and self._owner.is_running():
            return self._sessions
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def give_up(self, stuck: Sessions) -> bool:
        """End the JVM of these sessions, in which a query cannot be interrupted; the next query starts another.

        False if that JVM has ended already: the one that runs now serves other queries.
        """
        async with self._turn:
            if self._sessions is not stuck:
                return False
            self._close_sessions()
            await asyncio.to_thread(self._owner.kill)  # an orderly stop would wait for the query
            return True

    async def warm_after(self, seconds: float) -> None:
        """Start Spark and run its first jobs before the first query comes."""
        await asyncio.sleep(seconds)
        with suppress(Exception):  # the first query gets the error
            await self.sessions()
            report = await asyncio.to_thread(self._owner.warm)
            log.info("Spark is warm", seconds=round(report.seconds, 1))

    async def close(self) -> None:
        if self._starting is not None:  # a start cannot be interrupted
            await asyncio.wait({self._starting})
        async with self._turn:
            self._close_sessions()
            await asyncio.to_thread(self._owner.stop)

    async def _start(self) -> Sessions:
        async with self._turn:
            self._close_sessions()
            spark = await asyncio.to_thread(self._owner.session)
            self._sessions = Sessions(spark, self._kept)
            self._sessions.fill()
            return self._sessions

    def _close_sessions(self) -> None:
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None


def query_options(settings: Settings) -> SparkOptions:
    """The Query service has a JVM of its own, never Spark Connect: plans must be checked before they run.

    No cgroup limits it, and queries of all organisations share it: a lower priority keeps the cores for those on Sail.
    """
    options = options_for(settings, "query")
    return replace(
        options,
        remote=None,
        driver_memory=settings.query.driver_memory,
        nice=0 if settings.query.engine == "spark" else settings.query.spark_nice,
        conf={
            **options.conf,
            "spark.driver.maxResultSize": f"{max(1, settings.query.max_bytes // MEGABYTE)}m",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",  # rows may be large, and a batch is never split
            "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
            # A GROUP BY takes a page however few its groups are; Spark's own are 8 MB and more, cleared each time.
            "spark.buffer.pageSize": "1m",
            "spark.driver.extraJavaOptions": _collector(settings.query.driver_memory),
        },
    )


def _collector(heap: str) -> str:
    size = int(heap[:-1]) * (MEGABYTE if heap.endswith("m") else 1024 * MEGABYTE)
    return "-XX:+UseSerialGC" if size < SMALL_HEAP else ""
