"""Translates Spark's errors into ours: without paths, bytes of files or stacks.

Only what follows from the caller's own query and rows is repeated: mistakes in the query (SQLSTATE 42) and in values
(22). They are final. Of any other error only Spark's name for it is given, and the caller may retry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from tracelake.errors import InvalidSql, QueryFailed, SparkLost, TraceError, Unavailable
from tracelake.query.collect import too_large
from tracelake.spark.failures import first_line, state_in, typed

OF_THE_QUERY: Final = ("42", "0A", "21", "54")
OF_THE_VALUES: Final = ("22", "23", "P0")
MAX_CHARS: Final = 1_000
PATHS: Final = ("://", "file:", "/part-", ".parquet")
SHUT_DOWN: Final = ("SparkContext was shut down", "stopped SparkContext", "SparkContext has been shutdown")
"""Messages of a Spark that is being ended."""
OF_OUR_FILES: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE")
"""No query names a file: a missing or damaged file is not the query's fault, whatever the SQLSTATE."""
TOO_DEEP: Final = "java.lang.StackOverflowError"

log = structlog.get_logger()


@contextmanager
def translated_errors(names: Mapping[str, str], max_bytes: int) -> Iterator[None]:
    """`names`: the caller's names of the views."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except TraceError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        raise _translate(error, str(error), names, max_bytes) from None


def spark_lost() -> SparkLost:
    return SparkLost("the Query service lost its Spark, and starts another", hint="retry in a moment")


def _translate(error: BaseException, text: str, names: Mapping[str, str], max_bytes: int) -> TraceError:
    if "spark.driver.maxResultSize" in text:
        return too_large(max_bytes)
    if any(words in text for words in SHUT_DOWN):
        return spark_lost()
    if TOO_DEEP in text:
        return InvalidSql("the query is nested too deeply", hint="name its parts in a WITH")
    return typed(error) or _by_state(error, text, names)


def _by_state(error: BaseException, text: str, names: Mapping[str, str]) -> TraceError:
    known, condition = _call(error, "getSqlState"), _call(error, "getCondition")
    state = known or state_in(text)
    message = _one_line(text, names) if known else ""
    if not message or any(path in message for path in PATHS):
        message = f"Spark could not answer it ({condition or type(error).__name__})"
    if condition.startswith(OF_OUR_FILES):
        state = ""
    if state.startswith(OF_THE_QUERY):
        return InvalidSql(message, hint="check the names and types of columns")
    if state.startswith(OF_THE_VALUES):
        return QueryFailed(message, hint="try_cast, try_divide and the like give NULL instead")
    log.warning("a query failed", condition=condition, state=state, kind=type(error).__name__)
    name = condition or type(error).__name__
    return Unavailable(f"Spark could not answer it ({name})", hint="retry in a moment")


def _call(error: BaseException, method: str) -> str:
    try:
        return str(getattr(error, method)() or "")
    except Exception:  # noqa: BLE001 - the JVM may be gone
        return ""


def _one_line(text: str, names: Mapping[str, str]) -> str:
    message = first_line(text, names)
    return "" if "v_" in message and any(view[:8] in message for view in names.values()) else message[:MAX_CHARS]
