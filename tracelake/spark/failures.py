"""What Spark says when rows cannot be made, in a line and as our own error: people read it in `trace task show`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tracelake.errors import TraceError, WorkFailed
from tracelake.spark.worker_errors import typed

DATA = ("22", "23", "42", "0A", "2E")
"""SQLSTATE classes of mistakes in the data or the query: the same again tomorrow."""


@contextmanager
def spark_failures(where: str) -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except TraceError:
        raise
    except PySparkException as wrong:
        ours = typed(wrong)
        if ours is not None:
            raise ours from None
        state = wrong.getSqlState() or ""
        said = str(wrong).partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0].strip()
        raise WorkFailed(said, where=where, retryable=not state.startswith(DATA)) from wrong
