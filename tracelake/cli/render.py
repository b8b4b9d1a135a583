"""Formats answers as tables, times and pairs of name and value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracelake.cli import printing
from tracelake.domain.text.escape_controls import on_one_line, visible

WIDE = 400
COLOURS = {"Completed": "green", "Running": "yellow", "Failed": "red", "Canceled": "dim", "active": "green"}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Sequence[str] = ("id",)) -> None:
    """`whole`: columns that are never wrapped, such as ids."""
    rich_table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        rich_table.add_column(Text(visible(column)), no_wrap=column in whole, overflow="fold")
    for row in rows:
        rich_table.add_row(*(cell(value) for value in row))
    if printing.out.is_terminal:
        printing.out.print(rich_table, soft_wrap=False)
    else:
        _piped(rich_table)


def _piped(rich_table: Table) -> None:
    """Without a maximum width, and without trailing blanks."""
    wide = Console(width=WIDE, highlight=False, emoji=False)
    with wide.capture() as drawn:
        wide.print(rich_table)
    for line in drawn.get().splitlines():
        printing.out.print(line.rstrip(), markup=False)


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """Prints one pair per line without empty values; further lines of a value are indented."""
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
    """The first line of a text, shortened for a list."""
    if text is None:
        return None
    line = text.strip().partition("\n")[0].rstrip()
    cut = line if len(line) <= most else line[:most].rstrip()
    return cut if cut == text.strip() else f"{cut} ..."


def when(moment: datetime) -> str:
    """In the local time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def title(text: str) -> None:
    printing.out.print(Text(f"\n{on_one_line(text)}", style="bold"))


def note(text: str) -> None:
    printing.out.print(text, markup=False)


def log_line(text: str, style: str = "") -> None:
    """Prints one line of a log, with control characters escaped."""
    printing.out.print(Text(visible(text, keep="	"), style=style))


def answer(message: msgspec.Struct, text: str, *, in_json: bool) -> None:
    """Prints the message as JSON, or the text."""
    if in_json:
        as_json(message)
    else:
        note(text)


def json_or_empty(answer: msgspec.Struct, rows: Sequence[object], empty: str, *, in_json: bool) -> bool:
    """Prints the answer as JSON, or `empty` if there are no rows; False if there are rows to show."""
    if in_json:
        as_json(answer)
    elif not rows:
        note(empty)
    return in_json or not rows


def as_json(answer: msgspec.Struct) -> None:
    built: Any = msgspec.to_builtins(answer)
    printing.as_json(built)
