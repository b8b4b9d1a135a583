"""What Spark says when a question cannot be answered, as ours: never a path, never bytes of a file, never its stack.

Only what follows from the asker's own query and rows is repeated: mistakes in the query (SQLSTATE 42) and in values
(22). Of everything else, no more than Spark's name for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from trace_platform.errors import InvalidSql, QueryFailed, TraceError
from trace_platform.query.collect import too_large
from trace_platform.spark.worker_errors import typed

OF_THE_QUERY: Final = ("42", "0A", "21", "54")
OF_THE_VALUES: Final = ("22",)
MAX_CHARS: Final = 1_000
PATHS: Final = ("://", "file:", "/part-", ".parquet")

log = structlog.get_logger()


@contextmanager
def in_our_words(names: Mapping[str, str], max_bytes: int) -> Iterator[None]:
    """`names`: views by the names that the asker knows them by."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except TraceError:
        raise
    except (PySparkException, Py4JJavaError) as wrong:
        raise _ours(wrong, str(wrong), names, max_bytes) from None


def _ours(wrong: BaseException, text: str, names: Mapping[str, str], max_bytes: int) -> TraceError:
    if "spark.driver.maxResultSize" in text:
        return too_large(max_bytes)
    if (ours := typed(wrong)) is not None:
        return ours
    state = _ask(wrong, "getSqlState")
    condition = _ask(wrong, "getCondition")
    said = _one_line(text, names)
    if any(path in said for path in PATHS):
        said = ""
    if state.startswith(OF_THE_QUERY) and said:
        return InvalidSql(said, hint="check the names and types of columns")
    if state.startswith(OF_THE_VALUES) and said:
        return QueryFailed(said, hint="try_cast, try_divide and the like give NULL instead")
    log.warning("a question failed", condition=condition, state=state)
    return QueryFailed(f"Spark could not answer it ({condition or type(wrong).__name__})")


def _ask(wrong: BaseException, method: str) -> str:
    try:
        return str(getattr(wrong, method)() or "")
    except Exception:  # noqa: BLE001 - the JVM that knew may be gone
        return ""


def _one_line(text: str, names: Mapping[str, str]) -> str:
    said = text.partition("\n")[0].partition("; line ")[0].strip()
    for name, view in names.items():
        said = said.replace(view, name)
    return "" if "v_" in said and any(view[:8] in said for view in names.values()) else said[:MAX_CHARS]
