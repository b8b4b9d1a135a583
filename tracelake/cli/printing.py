"""How the command line speaks: tables for eyes, JSON for programs, refusals for both.

Everything that a verb prints goes through here, so that text of others (errors of user code, values, names) is shown
and never obeyed by the terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from tracelake.domain.escape_controls import visible, visible_json
from tracelake.errors import TraceError


class VisibleConsole(Console):
    """A console on which only Rich's own controls, such as those of a progress bar, reach the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escaped before it is laid out: a table's columns are as wide as what they show."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


# A pipe has no width: what is cut off at 80 columns there is lost to whoever reads it.
out = VisibleConsole(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 200)
err = VisibleConsole(stderr=True, highlight=False, emoji=False, soft_wrap=True)


@contextmanager
def waiting(what: str, *, quiet: bool = False, every: float = 5.0) -> Iterator[None]:
    """On standard error, while the block lasts: what is waited for, and how long already; into a file by lines."""
    if quiet:
        yield
    elif err.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=err, transient=True) as progress:
            progress.add_task(visible(what), total=None)
            yield
    else:
        done = Event()
        saying = Thread(target=_say_waiting, args=(what, every, done), daemon=True)
        saying.start()
        try:
            yield
        finally:
            done.set()
            saying.join()


def _say_waiting(what: str, every: float, done: Event) -> None:
    began = time.monotonic()
    while not done.wait(every):
        err.print(f"{what}: {time.monotonic() - began:.0f} s so far", markup=False)


def as_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def json_text(document: bytes) -> bytes:
    """A JSON document of others, as it may be written anywhere."""
    return visible_json(document.decode()).encode()


def document(body: bytes) -> None:
    """A document such as CSV or YAML: byte for byte into a pipe or file, made visible on a terminal."""
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
