"""A Spark session for tests: one for each folder of tests that needs rows, because a process can have only one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trace_platform.spark.configuration import SparkOptions
from trace_platform.spark.java import find_java
from trace_platform.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A JVM that lives for a minute is better off without the slow compiler."""


@contextmanager
def a_session(folder: Path) -> Iterator[SparkSession]:
    options = SparkOptions(local_dir=folder / "spark", master="local[2]", driver_memory="768m", conf=QUICK)
    session = start_session(options, find_java(os.environ, folder / "cache"), os.environ)
    try:
        yield session
    finally:
        stop_session(session)
