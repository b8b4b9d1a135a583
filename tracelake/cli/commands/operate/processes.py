"""`trace dispatcher`, `trace worker`, ...: run one process in the foreground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tracelake.cli.options import Home, settings_of
from tracelake.errors import SettingsError

SettingsFrom = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help="`-` reads all settings as JSON from standard input, and from nowhere else.",
        metavar="-",
    ),
]

ABOUT = {
    "dispatcher": "The control plane: events become tasks, tasks become commits.",
    "worker": "Runs tasks, many at once, in one warm Spark session.",
    "sink": "Drains buffered batches into data Postgres.",  # its verb is in `cli/commands/operate/sink.py`
    "runner": "Runs user code in sandboxes.",
    "query": "SQL over granted datasets.",  # its verb is in `cli/commands/data/query.py`
    "gateway": "The only public listener: the user API.",
    "scheduler": "Have cron sources fired when they are due.",
    "delivery": "Sends alerts. Only it connects to addresses that users choose.",
}


def _verb(name: str) -> Callable[..., None]:
    def run(home: Home = None, settings: SettingsFrom = None) -> None:
        run_component(name, home, settings)

    run.__doc__ = ABOUT[name]
    return run


def run_component(name: str, home: Path | None, settings: str | None) -> None:
    from tracelake.wiring import run_from_stdin, run_with

    if settings == "-":
        run_from_stdin(name)
    if settings is not None:
        raise SettingsError(
            f"settings are read from standard input only, not from {settings!r}",
            where="--settings",
            hint="`--settings -`; or write them into trace.toml in the home folder",
        )
    run_with(name, settings_of(home))


VERBS = {name: _verb(name) for name in ABOUT if name not in {"sink", "query"}}
