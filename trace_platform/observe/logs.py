"""What a process says: JSON lines, each with what it is about.

A line about a task carries org, dag, job, task and attempt; a line about a request its id. They are bound where they
become known and ride along in one context variable, so every line said below has them, and no other line has.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import structlog

from trace_platform.observe.hidden import Hide
from trace_platform.settings import LogSettings

_about: ContextVar[Mapping[str, Any]] = ContextVar("about")
_NOTHING: Mapping[str, Any] = {}
_debugging = False


def speak_of(**fields: Any) -> None:
    """From here on, in this task and what it starts, lines carry these and nothing that was bound before."""
    _about.set(fields)


def speak_also_of(fields: Mapping[str, Any]) -> None:
    _about.set({**_about.get(_NOTHING), **fields})


@contextmanager
def speaking_of(**fields: Any) -> Iterator[None]:
    before = _about.set({**_about.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _about.reset(before)


def spoken_of() -> Mapping[str, Any]:
    return _about.get(_NOTHING)


def is_debugging() -> bool:
    """Asked first on the hot path: a line that is dropped still costs microseconds to put together."""
    return _debugging


def configure_logging(process: str, settings: LogSettings, hide: Hide = str) -> None:
    """Our lines and those of the libraries below us come out alike, on standard output, without what `hide` knows."""

    def add_process(_logger: object, _method: str, line: dict[str, Any]) -> dict[str, Any]:
        line.setdefault("process", process)
        return line

    global _debugging  # noqa: PLW0603 - as all of logging, one a process, set when it starts
    _debugging = settings.level == "debug"
    for_eyes = settings.format == "console"
    render: Any = structlog.dev.ConsoleRenderer() if for_eyes else structlog.processors.JSONRenderer()

    def renderer(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        return hide(render(logger, method, line))

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
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=False,
    )
    _configure_libraries(shared, renderer)


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
