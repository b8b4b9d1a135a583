"""The table of processes in `trace up`, `trace status` and `trace demo`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tracelake.domain.text.escape_controls import visible
from tracelake.lite.child import ChildStatus

COLOURS = {
    "ready": "green",
    "failed": "red",
    "restarting": "red",
    "held back": "red",
    "starting": "yellow",
    "stopping": "yellow",
}


def process_table(children: Sequence[ChildStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("process", "state", "pid", "since", "restarts", "listens", "status"):
        table.add_column(
            column, justify="right" if column in {"pid", "restarts"} else "left", no_wrap=column != "status"
        )
    for child in children:
        table.add_row(
            child.name,
            Text(child.state, style=COLOURS.get(child.state, "dim")),
            str(child.pid or ""),
            time.strftime("%H:%M:%S", time.localtime(child.since)) if child.since else "",
            str(child.restarts or ""),
            " ".join(listener.removeprefix("https://") for listener in child.listeners),
            Text(visible(child.status or child.held_back)),
        )
    return table
