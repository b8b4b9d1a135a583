"""Answers for eyes: tables, times, and pairs of a name and a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracelake.cli import printing
from tracelake.domain.escape_controls import on_one_line, visible

WIDE = 400
COLOURS = {"Completed": "green", "Running": "yellow", "Failed": "red", "Canceled": "dim", "active": "green"}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Sequence[str] = ("id",)) -> None:
    """`whole`: columns that are never broken, such as ids to be copied."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(Text(visible(column)), no_wrap=column in whole, overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    if printing.out.is_terminal:
        printing.out.print(made, soft_wrap=False)
    else:
        _piped(made)


def _piped(made: Table) -> None:
    """Not cut to a width, and without the blanks that fill a terminal's line."""
    wide = Console(width=WIDE, highlight=False, emoji=False)
    with wide.capture() as drawn:
        wide.print(made)
    for line in drawn.get().splitlines():
        printing.out.print(line.rstrip(), markup=False)


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """One a line; what there is nothing to say about is left out. Further lines of a value stand below its first."""
    known = [(name, value) for name, value in values if value not in (None, "", [])]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        shown = cell(value)
        indented = Text("\n" + " " * (width + 2)).join(shown.split("\n"))
        printing.out.print(Text(f"{on_one_line(name):<{width}}  ", style="bold") + indented)


def cell(value: object) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(when(value))
    if isinstance(value, list):
        return Text(visible(", ".join(str(item) for item in value)))
    text = visible(str(value))
    return Text(text, style=COLOURS.get(text, ""))


def first_line(text: str | None, most: int = 100) -> str | None:
    """For a list: the first line of a text, and not too much of it."""
    if text is None:
        return None
    line = text.strip().partition("\n")[0].rstrip()
    cut = line if len(line) <= most else line[:most].rstrip()
    return cut if cut == text.strip() else f"{cut} ..."


def when(moment: datetime) -> str:
    """In the reader's own time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def title(text: str) -> None:
    printing.out.print(Text(f"\n{on_one_line(text)}", style="bold"))


def note(text: str) -> None:
    printing.out.print(text, markup=False)


def said(text: str, style: str = "") -> None:
    """A line of a log: one line, whatever stands in it."""
    printing.out.print(Text(visible(text, keep="	"), style=style))


def as_json(answer: msgspec.Struct) -> None:
    built: Any = msgspec.to_builtins(answer)
    printing.as_json(built)
