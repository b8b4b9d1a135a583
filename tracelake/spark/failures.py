"""Turns Spark's errors into ours, as one line: users see them in `trace task show`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tracelake import errors
from tracelake.domain.error_codes import PLATFORM_KINDS
from tracelake.errors import DiskFull, TraceError, WorkFailed

DATA = ("22", "23", "42", "0A", "2E")
"""SQLSTATE classes of mistakes in the data or the query: a retry fails again."""
BY_QUERY = (*DATA, "P0")
"""Also `raise_error`: the text is a value or a literal of the query, whatever it looks like."""
RAISED: Final = re.compile(r"^(?:tracelake\.errors\.)?(\w+): (.*)$", re.MULTILINE)
"""An error of a Python worker, which reaches the driver only as text of Spark's exception."""
NO_SPACE: Final = re.compile(r"IOException: (?:No space left on device|Disk quota exceeded)")
SQLSTATE: Final = re.compile(r"\bSQLSTATE: (\w{5})\b")


@contextmanager
def spark_failures(where: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except TraceError:
        raise
    except (PySparkException, Py4JJavaError) as error:
        ours = typed(error)
        if ours is not None:
            raise ours from None
        state = (error.getSqlState() if isinstance(error, PySparkException) else None) or state_in(str(error))
        message = str(error).partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0].strip()
        raise WorkFailed(message, where=where, retryable=not state.startswith(DATA)) from error


def first_line(text: str, names: Mapping[str, str]) -> str:
    """Return the first line of Spark's error without its position, with the author's names of the views."""
    line = text.strip().partition("\n")[0].partition("; line ")[0].strip()
    for name, view in names.items():
        line = line.replace(view, name)
    return line


def state_in(text: str) -> str:
    """Return the SQLSTATE of an error that a failed job wraps: Spark writes it into the text."""
    match = SQLSTATE.search(text)
    return match[1] if match else ""


def typed(error: BaseException) -> TraceError | None:
    """Return the error that a worker raised, if the text of Spark's exception contains one; or that of a full disk."""
    from pyspark.errors import PythonException

    if isinstance(error, TraceError):
        return error
    # What a Python worker raises may quote the SQLSTATE of another database; a query cannot raise such an exception.
    if not isinstance(error, PythonException) and state_in(str(error)).startswith(BY_QUERY):
        return None
    if NO_SPACE.search(str(error)):
        return DiskFull.of("Spark's work folder", None)
    for name, message in RAISED.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TraceError) and kind is not errors.InvalidDag:
            return kind(message)
    return None


def rebuilt(report: Mapping[str, Any]) -> TraceError:
    """Rebuild an error that a worker reported by `as_dict`: a platform error as its own class, others as the job's.

    Failed attempts are counted by class: a full disk must not use up the job's attempts.
    """
    kind = PLATFORM_KINDS.get(report["code"])
    if kind is None:
        return WorkFailed(report["message"], where=report["where"], hint=report["hint"], retryable=report["retryable"])
    refusal = kind(report["message"], where=report["where"])
    refusal.hint = report["hint"]
    refusal.retryable = report["retryable"]
    return refusal
