"""The table of processes, the same in `trace up`, `trace status` and `trace demo`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tracelake.domain.escape_controls import visible
from tracelake.lite.supervisor import Seen

COLOURS = {
    "ready": "green",
    "failed": "red",
    "restarting": "red",
    "held back": "red",
    "starting": "yellow",
    "stopping": "yellow",
}


def process_table(everyone: Sequence[Seen]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("process", "state", "pid", "since", "restarts", "listens", "says"):
        table.add_column(column, justify="right" if column in {"pid", "restarts"} else "left", no_wrap=column != "says")
    for seen in everyone:
        table.add_row(
            seen.name,
            Text(seen.state, style=COLOURS.get(seen.state, "dim")),
            str(seen.pid or ""),
            time.strftime("%H:%M:%S", time.localtime(seen.since)) if seen.since else "",
            str(seen.restarts or ""),
            " ".join(listener.removeprefix("https://") for listener in seen.listeners),
            Text(visible(seen.status)),
        )
    return table
