"""Prints tables, JSON and errors.

Every verb prints through this module, so that control characters in foreign text (errors of user code, values, names)
are shown and do not reach the terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from tracelake.domain.text.escape_controls import visible, visible_json
from tracelake.errors import TraceError


class VisibleConsole(Console):
    """A console that escapes all control characters but Rich's own."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escapes before layout, so that columns of tables have the right width."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between two lines of progress in a file."""

# A pipe has no width: without this, lines would be cut off at 80 columns.
out = VisibleConsole(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = VisibleConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def waiting(what: str, *, quiet: bool = False, first: float = 5.0) -> Iterator[Callable[[str], None]]:
    """Shows on standard error what the block waits for and how long already: a spinner, or lines in a file.

    In a file, a line comes after `first` seconds, and then ever later.

    Yields a function that changes the text.
    """
    if quiet:
        yield lambda _: None
    elif err.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=err, transient=True) as progress:
            shown = progress.add_task(visible(what), total=None)
            yield lambda text: progress.update(shown, description=visible(text))
    else:
        done, now = Event(), [what]
        reporter = Thread(target=_report_waiting, args=(now, first, done), daemon=True)
        reporter.start()
        try:
            yield lambda text: now.__setitem__(0, text)
        finally:
            done.set()
            reporter.join()


def _report_waiting(now: Sequence[str], first: float, done: Event) -> None:
    began, pause = time.monotonic(), first
    while not done.wait(pause):
        err.print(f"{now[0]}: {time.monotonic() - began:.0f} s so far", markup=False)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def as_json_line(value: Any) -> None:
    """One line of a stream of JSON documents; what is not ASCII is escaped."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def json_text(document: bytes) -> bytes:
    """A foreign JSON document with control characters escaped."""
    return visible_json(document.decode()).encode()


def document(body: bytes) -> None:
    """Writes CSV, YAML and the like: unchanged to a pipe or file, escaped to a terminal."""
    if sys.stdout.isatty():
        body = visible(body.decode(errors="backslashreplace")).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.flush()


def refuse(refusal: TraceError, *, in_json: bool) -> None:
    if in_json:
        as_json({"error": refusal.as_dict()})
        return
    err.print(Text(refusal.code, style="bold red") + Text(f": {visible(refusal.message)}"))
    if refusal.where:
        err.print(f"  where: {refusal.where}", markup=False)
    if refusal.hint:
        err.print(f"  try:   {refusal.hint}", markup=False)
