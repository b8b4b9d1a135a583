"""Whether Spark itself is gone, and not only a job of it: then what failed says nothing of the task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tracelake.spark.session import is_alive
from tracelake.spark.tags import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYING_SECONDS: Final = 2.0
"""A killed JVM's connections are closed a moment before the process is seen to have ended."""
FORGOTTEN: Final = "INVALID_HANDLE.SESSION"
"""A Spark Connect server that was started again, or waited too long for a word, does not know our session."""


def is_lost(spark: SparkSession, error: BaseException) -> bool:
    if is_classic(spark):
        return not is_alive(spark, DYING_SECONDS if _is_cut_off(error) else 0)
    remote: Any = spark
    # A session that found another server behind its address closes itself, and then says no more than that.
    return remote.is_stopped or any(_is_forgotten(cause) for cause in _causes(error))


def _is_cut_off(error: BaseException) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return any(isinstance(cause, Py4JError | OSError | EOFError) for cause in _causes(error))


def _is_forgotten(error: BaseException) -> bool:
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return False
    # In the middle of an answer it is the reason that another error gives.
    reason = (error.getMessageParameters() or {}).get("error_type")
    return any((item or "").startswith(FORGOTTEN) for item in (error.getCondition(), reason))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
