"""The sink's Spark: started by the first message, and again if it was lost. Without buffered datasets there is none.

The message about a new table comes when its DAG is activated: by the time of the first batch the session is there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from tracelake.settings import Settings
from tracelake.spark.archive_location import archive_for
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import is_alive, start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()


QUICK: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "FALLBACK",  # Spark's own: its rows are many
}
"""Its jobs are one stage of Python: what plans and compiles more costs each of them a third of its time."""


class OwnSpark:
    """Asked from any thread; one of them starts it."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._starting = threading.Lock()

    def session(self) -> SparkSession:
        with self._starting:
            if self._session is not None and not is_alive(self._session):
                log.warning("Spark was lost, and is started again")
                stop_session(self._session)
                self._session = None
            if self._session is None:
                self._session = self._start()  # not warmed: a batch waits for it, and does that as well
                log.info("Spark runs")
            return self._session

    def close(self) -> None:
        with self._starting:
            if self._session is not None:
                stop_session(self._session)
                self._session = None


def starter(settings: Settings) -> Callable[[], SparkSession]:
    def start() -> SparkSession:
        cache = settings.home / "cache"
        java = None if settings.spark.remote else find_java(os.environ, cache)
        options = SparkOptions(
            local_dir=settings.home / "work" / "sink",
            app_name="trace sink",
            master=settings.spark.master,
            remote=settings.spark.remote_url,
            driver_memory=settings.sink.driver_memory,
            shuffle_partitions=settings.spark.shuffle_partitions,
            class_archive=archive_for(java, cache) if java else None,
            quick_compiler=True,  # rows are checked in Python and merged in Postgres
            conf={} if settings.spark.quick_compiler else QUICK,
        )
        return start_session(options, java, os.environ)

    return start
