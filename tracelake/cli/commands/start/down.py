"""`trace down`: stop what `trace up` started."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, Json, settings_of
from tracelake.errors import Unavailable

Seconds = Annotated[float, typer.Option("--timeout", help="How long to wait, in seconds.", metavar="S")]


def down(home: Home = None, timeout: Seconds = 90.0, json: Json = False) -> None:
    """Stop everything in order and wait until it has stopped. It is no error if nothing runs."""
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import holder

    folder = HomeFolder(settings_of(home).home)
    pid = holder(folder)
    if pid is None:
        _print_result(f"nothing runs in {folder.root}", json=json, stopped=None)
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while holder(folder) == pid:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"process {pid} has not stopped after {timeout:.0f} s",
                where=str(folder.root),
                hint="wait, and run `trace down` again",
            )
        time.sleep(0.05)
    _print_result(f"stopped process {pid}", json=json, stopped=pid)


def _print_result(sentence: str, *, json: bool, stopped: int | None) -> None:
    if json:
        printing.as_json({"stopped": stopped})
    else:
        printing.out.print(sentence, markup=False)
