"""What Spark says when a query cannot be answered, as ours: never a path, never bytes of a file, never its stack.

Only what follows from the caller's own query and rows is repeated: mistakes in the query (SQLSTATE 42) and in values
(22). They are final. Whatever else goes wrong is Spark's or the machine's: no more is said of it than Spark's name for
it, and the caller may ask again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from tracelake.errors import InvalidSql, QueryFailed, SparkLost, TraceError, Unavailable
from tracelake.query.collect import too_large
from tracelake.spark.worker_errors import typed

OF_THE_QUERY: Final = ("42", "0A", "21", "54")
OF_THE_VALUES: Final = ("22", "23", "P0")
MAX_CHARS: Final = 1_000
PATHS: Final = ("://", "file:", "/part-", ".parquet")
SHUT_DOWN: Final = ("SparkContext was shut down", "stopped SparkContext", "SparkContext has been shutdown")
"""What a Spark that is being ended says to those who still use it."""
OF_OUR_FILES: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE")
"""No query names a file: if one is missing or damaged, the query is not at fault, whatever the SQLSTATE."""
TOO_DEEP: Final = "java.lang.StackOverflowError"
SQLSTATE: Final = re.compile(r"\bSQLSTATE: (\w{5})\b")

log = structlog.get_logger()


@contextmanager
def in_our_words(names: Mapping[str, str], max_bytes: int) -> Iterator[None]:
    """`names`: views by the names that the caller knows them by."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except TraceError:
        raise
    except (PySparkException, Py4JJavaError) as wrong:
        raise _ours(wrong, str(wrong), names, max_bytes) from None


def spark_lost() -> SparkLost:
    return SparkLost("the Query service lost its Spark, and starts another", hint="ask again in a moment")


def _ours(wrong: BaseException, text: str, names: Mapping[str, str], max_bytes: int) -> TraceError:
    if "spark.driver.maxResultSize" in text:
        return too_large(max_bytes)
    if any(words in text for words in SHUT_DOWN):
        return spark_lost()
    if TOO_DEEP in text:
        return InvalidSql("the query is nested too deeply", hint="name its parts in a WITH")
    return typed(wrong) or _by_state(wrong, text, names)


def _by_state(wrong: BaseException, text: str, names: Mapping[str, str]) -> TraceError:
    known, condition = _ask(wrong, "getSqlState"), _ask(wrong, "getCondition")
    state = known or _state_of_cause(text)
    said = _one_line(text, names) if known else ""
    if not said or any(path in said for path in PATHS):
        said = f"Spark could not answer it ({condition or type(wrong).__name__})"
    if condition.startswith(OF_OUR_FILES):
        state = ""
    if state.startswith(OF_THE_QUERY):
        return InvalidSql(said, hint="check the names and types of columns")
    if state.startswith(OF_THE_VALUES):
        return QueryFailed(said, hint="try_cast, try_divide and the like give NULL instead")
    log.warning("a query failed", condition=condition, state=state, kind=type(wrong).__name__)
    name = condition or type(wrong).__name__
    return Unavailable(f"Spark could not answer it ({name})", hint="ask again in a moment")


def _state_of_cause(text: str) -> str:
    """Of an error that a job's failure wraps: Spark writes it into the text."""
    found = SQLSTATE.search(text)
    return found[1] if found else ""


def _ask(wrong: BaseException, method: str) -> str:
    try:
        return str(getattr(wrong, method)() or "")
    except Exception:  # noqa: BLE001 - the JVM that knew may be gone
        return ""


def _one_line(text: str, names: Mapping[str, str]) -> str:
    said = text.strip().partition("\n")[0].partition("; line ")[0].strip()
    for name, view in names.items():
        said = said.replace(view, name)
    return "" if "v_" in said and any(view[:8] in said for view in names.values()) else said[:MAX_CHARS]
