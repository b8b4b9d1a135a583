"""The Query service's Spark: started when it is first needed or a while after the process, and again if it was lost.

A query may cost the JVM its life (a text of many gigabytes does, whatever limits say): then this one and those beside
it are run once more on a new JVM, and refused as retryable if that one dies too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from tracelake.query.sessions import Sessions
from tracelake.settings import Settings
from tracelake.spark.session import is_alive, kill_session, start_session, stop_session, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

MEGABYTE = 1024 * 1024
BATCH_BYTES = 8 * MEGABYTE
"""Of rows on their way to the guard that counts them."""
SMALL_HEAP = 2 * 1024 * MEGABYTE
"""Below it, one thread that stops all others for some milliseconds clears the heap with less work than Java's way."""


class Warm(Protocol):
    """Where sessions come from."""

    async def sessions(self) -> Sessions: ...

    async def give_up(self, stuck: Sessions) -> bool:
        """End the JVM of these, in which something runs that cannot be interrupted; the next query finds another.

        False if it has ended already: then the one that runs now is others'.
        """
        ...


class OwnSpark:
    """One JVM of this process's own. Belongs to one event loop."""

    def __init__(self, start: Callable[[], SparkSession], kept: int) -> None:
        self._start = start
        self._kept = kept
        self._spark: SparkSession | None = None
        self._sessions: Sessions | None = None
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[Sessions] | None = None

    async def sessions(self) -> Sessions:
        """Of a JVM that runs, which may have to be started first.

        The start is nobody's own: who asked first may hang up, and those who asked with him still get what was begun.
        """
        if self._sessions is not None and not self.lost():
            return self._sessions
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._started())
        return await asyncio.shield(self._starting)

    async def _started(self) -> Sessions:
        async with self._turn:
            if self._sessions is None or self.lost():
                await self._begin()
            assert self._sessions is not None  # noqa: S101 - made above
            return self._sessions

    def lost(self) -> bool:
        return self._spark is None or not is_alive(self._spark)

    async def give_up(self, stuck: Sessions) -> bool:
        async with self._turn:
            if self._sessions is not stuck:
                return False
            await self._end(kill_session)  # an orderly stop would wait for what does not end
            return True

    async def warm_later(self, seconds: float) -> None:
        """While nobody waits: the first query is then not the first job."""
        await asyncio.sleep(seconds)
        with suppress(Exception):  # whoever asks first is told what is wrong
            await self.sessions()
            if self._spark is not None:
                report = await asyncio.to_thread(warm, self._spark)
                log.info("Spark is warm", seconds=round(report.seconds, 1))

    async def close(self) -> None:
        if self._starting is not None:  # what is being started cannot be stopped before it is there
            await asyncio.wait({self._starting})
        async with self._turn:
            await self._end()

    async def _begin(self) -> None:
        if self._spark is not None:
            log.warning("Spark was lost, and is started again")
        await self._end()
        self._spark = await asyncio.to_thread(self._start)
        self._sessions = Sessions(self._spark, self._kept)
        self._sessions.fill()
        log.info("Spark runs")

    async def _end(self, stop: Callable[[SparkSession], None] = stop_session) -> None:
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None
        if self._spark is not None:
            await asyncio.to_thread(stop, self._spark)
            self._spark = None


def _collector(heap: str) -> str:
    size = int(heap[:-1]) * (MEGABYTE if heap.endswith("m") else 1024 * MEGABYTE)
    return "-XX:+UseSerialGC" if size < SMALL_HEAP else ""


def starter(settings: Settings) -> Callable[[], SparkSession]:
    """How this process starts its Spark. It is always one of its own: plans must be seen before they run."""
    from tracelake.spark.archive_location import archive_for
    from tracelake.spark.configuration import SparkOptions
    from tracelake.spark.java import find_java

    def start() -> SparkSession:
        cache = settings.home / "cache"
        java = find_java(os.environ, cache)
        options = SparkOptions(
            local_dir=settings.home / "work" / "query",
            app_name="trace query",
            master=settings.spark.master,
            driver_memory=settings.query.driver_memory,
            shuffle_partitions=settings.spark.shuffle_partitions,
            class_archive=archive_for(java, cache),
            quick_compiler=settings.spark.quick_compiler,
            conf={
                "spark.driver.maxResultSize": f"{max(1, settings.query.max_bytes // MEGABYTE)}m",
                "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",  # rows may be large, and a batch is whole
                "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
                # A GROUP BY takes a page however few its groups are; Spark's own are 8 MB and more, cleared each time.
                "spark.buffer.pageSize": "1m",
                "spark.driver.extraJavaOptions": _collector(settings.query.driver_memory),
            },
        )
        return start_session(options, java, os.environ)

    return start
