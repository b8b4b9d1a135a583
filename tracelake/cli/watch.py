"""Shows the start of a Lite system: as a live table on a terminal, as lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tracelake.cli.printing import out
from tracelake.cli.process_table import process_table
from tracelake.domain.text.escape_controls import visible
from tracelake.lite.child import ChildStatus
from tracelake.lite.up import Watcher


@contextmanager
def watching() -> Iterator[Watcher]:
    if out.is_terminal and not out.is_dumb_terminal:
        with Live(console=out, auto_refresh=False) as live:
            yield LiveTable(live)
    else:
        yield PlainLines()


class PlainLines:
    """Prints a line per change, for logs, pipes and CI."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def changed(self, children: list[ChildStatus]) -> None:
        for child in children:
            line = f"{child.name:<15} {child.state:<10} {child.status}".rstrip()
            if child.state != "waiting" and self._shown.get(child.name) != line:
                self._shown[child.name] = line
                self.note(line)

    def note(self, sentence: str) -> None:
        with suppress(OSError):  # a full disk must not stop the supervisor
            out.print(sentence, markup=False)

    def ready(self, document: dict[str, Any]) -> None:
        for line in how_to_reach(document):
            self.note(line)


class LiveTable:
    """The table of processes, redrawn on each change."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._children: list[ChildStatus] = []
        self._notes: list[str] = []

    def changed(self, children: list[ChildStatus]) -> None:
        self._children = children
        self._draw()

    def note(self, sentence: str) -> None:
        self._notes = [sentence]
        self._draw()

    def ready(self, document: dict[str, Any]) -> None:
        self._notes = [*how_to_reach(document), "Ctrl-C stops everything."]
        self._draw()

    def _draw(self) -> None:
        self._live.update(Group(process_table(self._children), "", *map(Text, map(visible, self._notes))), refresh=True)


def held_back_lines(document: dict[str, Any]) -> list[str]:
    """The processes that did not start."""
    return [
        f"  but {name} is held back: it {why}. It is restarted automatically; `trace status` shows its state."
        for name, why in document["held_back"].items()
    ]


def how_to_reach(document: dict[str, Any]) -> list[str]:
    listeners = document["endpoints"]
    lines = [f"Trace is ready in {document['home']}.", *held_back_lines(document)]
    if "gateway" in listeners:
        lines.append(f"  try: curl --cacert '{document['ca_file']}' {listeners['gateway']}/healthz")
    return lines
