"""Owns the Spark session of a process: starts it when it is first needed, and again after its JVM was lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tracelake.settings import Settings
from tracelake.spark.archive_location import archive_for, installed_cache
from tracelake.spark.cluster import cluster_conf
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import Java, find_java
from tracelake.spark.session import WarmReport, is_alive, kill_session, start_session, stop_session, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Start = Callable[[SparkOptions, Java | None, Mapping[str, str]], SparkSession]

log = structlog.get_logger()


def options_for(settings: Settings, process: str) -> SparkOptions:
    """What the settings say about the Spark of any process."""
    return SparkOptions(
        local_dir=settings.home / "work" / process,
        app_name=f"trace {process}",
        master=settings.spark.master,
        remote=settings.spark.remote_url,
        driver_memory=settings.spark.driver_memory,
        shuffle_partitions=settings.spark.shuffle_partitions,
        python=str(settings.spark.python or sys.executable),
        quick_compiler=settings.spark.quick_compiler,
        conf=cluster_conf(settings.spark),
    )


class SparkOwner:
    """The methods may be called from any thread; they wait for a start or stop that another thread has begun."""

    def __init__(self, options: SparkOptions, cache: Path, start: Start = start_session) -> None:
        self._options = options
        self._cache = cache
        self._start = start
        self._java: Java | None = None
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    def session(self) -> SparkSession:
        """Return the running session; starts one if there is none, or if its JVM has ended."""
        with self._lock:
            if self._session is not None and not is_alive(self._session):
                log.warning("Spark was lost; starting it again")
                self._end(stop_session)
            if self._session is None:
                self._session = self._start_session()
                log.info("Spark has started")
            return self._session

    def warm(self) -> WarmReport:
        """Run the first jobs, so that those of a caller are not the first."""
        return warm(self.session())

    def is_running(self) -> bool:
        session = self._session
        return session is not None and is_alive(session)

    def status(self) -> str:
        """Return Spark's version, its master or server, and its Java."""
        if self._session is None:
            return "Spark has not started"
        where = (self._options.remote or self._options.master).partition(";")[0]  # a token may follow
        java = f", Java {self._java.version} ({self._java.origin})" if self._java else ""
        return f"Spark {self._session.version} on {where}{java}"

    @property
    def lacks_class_archive(self) -> bool:
        """Whether the JVM was started without a class archive, because none was made yet."""
        return self._java is not None and self._options.class_archive is None

    def stop(self) -> None:
        """End the session, after a start that is under way."""
        with self._lock:
            self._end(stop_session)

    def kill(self) -> None:
        """End the session without waiting for what runs in it."""
        with self._lock:
            self._end(kill_session)

    def _start_session(self) -> SparkSession:
        if self._options.remote is None:
            self._java = find_java(os.environ, self._cache)
            archive = archive_for(self._java, self._cache, installed_cache())
            self._options = replace(self._options, class_archive=archive)
        return self._start(self._options, self._java, os.environ)

    def _end(self, end: Callable[[SparkSession], None]) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            end(session)
