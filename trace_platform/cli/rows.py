"""Answers for eyes: tables, times, and pairs of a name and a value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trace_platform.cli import say

WIDE = 400
COLOURS = {"Completed": "green", "Running": "yellow", "Failed": "red", "Canceled": "dim", "active": "green"}


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, whole: Sequence[str] = ("id",)) -> None:
    """`whole`: columns that are never broken, such as ids to be copied."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=column in whole, overflow="fold")
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    if say.out.is_terminal:
        say.out.print(made, soft_wrap=False)
    else:
        _piped(made)


def _piped(made: Table) -> None:
    """Not cut to a width, and without the blanks that fill a terminal's line."""
    wide = Console(width=WIDE, highlight=False)
    with wide.capture() as drawn:
        wide.print(made)
    for line in drawn.get().splitlines():
        say.out.print(line.rstrip(), markup=False)


def pairs(values: Iterable[tuple[str, object]]) -> None:
    """One a line; what there is nothing to say about is left out."""
    known = [(name, value) for name, value in values if value not in (None, "", [])]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say.out.print(Text(f"{name:<{width}}  ", style="bold") + cell(value))


def cell(value: object) -> Text:
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(when(value))
    if isinstance(value, list):
        return Text(", ".join(str(one) for one in value))
    text = str(value)
    return Text(text, style=COLOURS.get(text, ""))


def when(moment: datetime) -> str:
    """In the reader's own time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def title(text: str) -> None:
    say.out.print(Text(f"\n{text}", style="bold"))


def note(text: str) -> None:
    say.out.print(text, markup=False)


def said(text: str, style: str = "") -> None:
    """Words that are not ours: what would move the cursor or colour the screen is shown, not done."""
    plain = "".join(
        letter if letter.isprintable() or letter == "\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    say.out.print(Text(plain, style=style))


def as_json(answer: msgspec.Struct) -> None:
    built: Any = msgspec.to_builtins(answer)
    say.as_json(built)
