"""Two ways to watch a Lite system: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tracelake.cli.printing import out
from tracelake.cli.process_table import process_table
from tracelake.domain.escape_controls import visible
from tracelake.lite.supervisor import Seen
from tracelake.lite.up import Watcher


@contextmanager
def watching() -> Iterator[Watcher]:
    if out.is_terminal and not out.is_dumb_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield LiveTable(live)
    else:
        yield PlainLines()


class PlainLines:
    """A line for each change: for logs, pipes and CI."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def changed(self, everyone: list[Seen]) -> None:
        for seen in everyone:
            line = f"{seen.name:<15} {seen.state:<10} {seen.status}".rstrip()
            if seen.state != "waiting" and self._shown.get(seen.name) != line:
                self._shown[seen.name] = line
                self.said(line)

    def said(self, sentence: str) -> None:
        with suppress(OSError):  # a full disk below a log must not stop what keeps the processes alive
            out.print(sentence, markup=False)

    def ready(self, document: dict[str, Any]) -> None:
        for line in how_to_reach(document):
            self.said(line)


class LiveTable:
    """The table of processes, redrawn at each change."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._everyone: list[Seen] = []
        self._notes: list[str] = []

    def changed(self, everyone: list[Seen]) -> None:
        self._everyone = everyone
        self._draw()

    def said(self, sentence: str) -> None:
        self._notes = [sentence]
        self._draw()

    def ready(self, document: dict[str, Any]) -> None:
        self._notes = [*how_to_reach(document), "Ctrl-C stops everything."]
        self._draw()

    def _draw(self) -> None:
        self._live.update(Group(process_table(self._everyone), "", *map(Text, map(visible, self._notes))), refresh=True)


def held_back_lines(document: dict[str, Any]) -> list[str]:
    """The processes that the start went on without."""
    return [
        f"  but {name} is held back: it {why}. It is started again by itself; `trace status` shows how it is."
        for name, why in document["held_back"].items()
    ]


def how_to_reach(document: dict[str, Any]) -> list[str]:
    listeners = document["endpoints"]
    lines = [f"Trace is ready in {document['home']}.", *held_back_lines(document)]
    if "gateway" in listeners:
        lines.append(f"  try: curl --cacert '{document['ca_file']}' {listeners['gateway']}/healthz")
    return lines
