"""Spark sessions for tests. A process can have only one at a time, and to start one takes longer than most tests.

So those who need nothing special share one, which stays until the tests are over or somebody needs one of his own.
Its plans run without generated Java code, as a sink's do and everybody's with `spark.quick_compiler`: compiling it is a
seventh of the work of these tests, which move few rows. `--generated-code` gives the shared one generated code too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelake.spark.configuration import QUICK_PLANS, SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import is_alive, start_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A JVM that lives for a minute is better off without the slow compiler."""


@contextmanager
def a_session(folder: Path, threads: int = 2, **options: Any) -> Iterator[SparkSession]:
    """A session for the caller only. `threads`: how many Spark tasks run at once."""
    end_shared()
    with _running(folder, threads, **options) as session:
        yield session


@contextmanager
def _running(folder: Path, threads: int = 2, **options: Any) -> Iterator[SparkSession]:
    usual = {"master": f"local[{threads}]", "driver_memory": "768m", "conf": QUICK}
    merged = SparkOptions(folder / "spark", **{**usual, **options})
    session = start_session(merged, find_java(os.environ, folder / "cache"), os.environ)
    try:
        yield session
    finally:
        stop_session(session)


class _Shared:
    def __init__(self) -> None:
        self.session: SparkSession | None = None
        self.held = ExitStack()
        self.generated_code = False


_shared = _Shared()


def shared_session() -> SparkSession:
    """The one of this process, started if it is not there."""
    if _shared.session is None or not is_alive(_shared.session):
        end_shared()
        folder = Path(tempfile.mkdtemp(prefix="trace-test-spark-"))
        _shared.held.callback(shutil.rmtree, folder, ignore_errors=True)
        options: dict[str, Any] = {} if _shared.generated_code else {"quick_compiler": True, "conf": {}}
        _shared.session = _shared.held.enter_context(_running(folder, **options))
    return _shared.session


def with_generated_code(session: SparkSession) -> SparkSession:
    """Another session on the same JVM, whose plans are Spark's own: for tests of what Spark makes of a query."""
    made = session.newSession()
    for name in QUICK_PLANS:
        made.conf.unset(name)
    return made


def share_with_generated_code() -> None:
    """Of a session that starts from now on."""
    _shared.generated_code = True


def end_shared() -> None:
    """Before a test starts a session of its own, and when all tests are over."""
    held, _shared.held, _shared.session = _shared.held, ExitStack(), None
    held.close()
