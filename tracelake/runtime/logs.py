"""Logs of a process: JSON lines, each with the task or request that it is about.

A line about a task has org, dag, job, task and attempt; a line about a request has its id. They are bound where they
become known, in one context variable, so every line that is logged below has them, and no other line has.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TextIO, cast

import structlog

from tracelake.domain.text.escape_controls import on_one_line, visible
from tracelake.runtime.redact import Redact
from tracelake.settings import LogSettings

_about: ContextVar[Mapping[str, Any]] = ContextVar("about")
_NOTHING: Mapping[str, Any] = {}
_debugging = False
TRACEBACKS: Final = frozenset({"exception", "stack"})


def set_log_fields(**fields: Any) -> None:
    """From here on, in this asyncio task and those it starts, lines have these fields and no others."""
    _about.set(fields)


def add_log_fields(fields: Mapping[str, Any]) -> None:
    _about.set({**_about.get(_NOTHING), **fields})


@contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    before = _about.set({**_about.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _about.reset(before)


def current_log_fields() -> Mapping[str, Any]:
    return _about.get(_NOTHING)


def is_debugging() -> bool:
    """Checked first on the hot path: a line that is dropped still costs microseconds to build."""
    return _debugging


def configure_logging(process: str, settings: LogSettings, hide: Redact = str) -> None:
    """Our lines and those of libraries look alike, on standard output, redacted by `hide`."""

    def add_process(_logger: object, _method: str, line: dict[str, Any]) -> dict[str, Any]:
        line.setdefault("process", process)
        return line

    global _debugging  # noqa: PLW0603 - as all of logging, one a process, set when it starts
    _debugging = settings.level == "debug"
    for_eyes = settings.format == "console"
    render: Any = structlog.dev.ConsoleRenderer() if for_eyes else structlog.processors.JSONRenderer()

    def renderer(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        # JSON escapes. `hide` knows secrets unescaped, so it runs before the escapes too.
        return hide(render(logger, method, _escaped(line, hide) if for_eyes else line))

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _add_subject,
        add_process,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Unbreakable(sys.stdout))),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(shared, renderer)


class _Unbreakable:
    """Standard output that raises nothing: a line that cannot be written (a full disk) must not break an answer.

    How many lines were lost is logged when the disk has room again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, line: str) -> None:
        try:
            if self._lost and line.strip():
                self._stream.write(f'{{"event": "log lines were lost", "lines": {self._lost}, "level": "warning"}}\n')
                self._stream.flush()
                self._lost = 0
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: it was closed
            self._lost += bool(line.strip())

    def flush(self) -> None:
        """Every write does it."""


def _escaped(line: Mapping[str, Any], hide: Redact) -> dict[str, Any]:
    """For a terminal, which must not interpret control characters of a line; only a traceback has several lines."""
    return {
        on_one_line(name): (visible if name in TRACEBACKS else on_one_line)(hide(value))
        if isinstance(value, str)
        else value
        for name, value in line.items()
    }


def _add_subject(_logger: object, _method: str, line: dict[str, Any]) -> dict[str, Any]:
    for name, value in _about.get(_NOTHING).items():
        line.setdefault(name, str(value) if not isinstance(value, int) else value)
    return line


def _configure_libraries(shared: list[Any], renderer: Any) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
