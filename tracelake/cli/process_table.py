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
    for one in everyone:
        table.add_row(
            one.name,
            Text(one.state, style=COLOURS.get(one.state, "dim")),
            str(one.pid or ""),
            time.strftime("%H:%M:%S", time.localtime(one.since)) if one.since else "",
            str(one.restarts or ""),
            " ".join(listener.removeprefix("https://") for listener in one.listeners),
            Text(visible(one.status)),
        )
    return table
