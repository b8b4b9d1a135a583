"""`trace up`: runs all of Trace on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tracelake.cli import printing
from tracelake.cli.options import Home, settings_of
from tracelake.errors import SetupError

PortBase = Annotated[
    int | None,
    typer.Option(
        "--port-base",
        help="The first of consecutive ports; 0 takes free ones.",
        show_default="7400",
        metavar="N",
        min=0,
        max=65500,
    ),
]
Without = Annotated[str, typer.Option("--without", help="Processes to leave out.", metavar="worker,sink,...")]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        help="Written when each process is ready or held back: listeners, CA, tokens, as JSON.",
        metavar="F",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return when each process is ready or held back, and leave it running.")
]


def up(
    home: Home = None,
    port_base: PortBase = None,
    without: Without = "",
    ready_file: ReadyFile = None,
    detach: Detach = False,
) -> None:
    """Start everything on this machine, keep it alive, stop it all on Ctrl-C.

    The first start creates the databases, certificates and keys in the home folder.
    """
    settings = settings_of(home)
    if port_base is not None:
        settings = settings.model_copy(update={"up": settings.up.model_copy(update={"port_base": port_base})})
    if detach:
        _in_background(settings.home, settings.up.port_base, without, ready_file)
        return
    from tracelake.cli.watch import watching
    from tracelake.lite.up import UpRequest
    from tracelake.lite.up import up as run_up

    names = frozenset(name.strip() for name in without.split(",") if name.strip())
    with watching() as watcher:
        run_up(UpRequest(settings, names, ready_file and ready_file.absolute()), watcher)
    printing.out.print("stopped; no process is left")


def _in_background(home: Path, port_base: int, without: str, ready_file: Path | None) -> None:
    from tracelake.cli.watch import held_back_lines
    from tracelake.lite.home import Home as HomeFolder
    from tracelake.lite.home import holder, in_use

    folder = HomeFolder(home)
    folder.make()
    if holder(folder) is not None:
        raise in_use(folder)
    log, ready = folder.logs / "up.log", (ready_file or folder.all_ready).absolute()
    argv = [sys.executable, "-m", "tracelake", "up", "--home", str(home), "--port-base", str(port_base)]
    argv += ["--without", without, "--ready-file", str(ready)]
    ready.unlink(missing_ok=True)
    began = log.stat().st_size if log.exists() else 0
    with log.open("ab") as sink:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    _wait_for(process, ready, lambda: log.read_bytes()[began:].decode(errors="replace").strip())
    printing.out.print(f"Trace is up (process {process.pid}); `trace status` shows it, `trace down` stops it.")
    printing.out.print(f"  endpoints and tokens: {ready}\n  logs: {folder.logs}", markup=False)
    for line in held_back_lines(json.loads(ready.read_text())):
        printing.err.print(line, markup=False)


def _wait_for(process: subprocess.Popen[bytes], ready: Path, output: Callable[[], str]) -> None:
    try:
        with printing.err.status("starting Trace"):
            while not _is_ready(ready, process.pid):
                if process.poll() is not None:
                    raise SetupError(output() or "`trace up` ended without output")
                time.sleep(0.1)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _is_ready(file: Path, pid: int) -> bool:
    """Whether this process wrote it: another `trace up` may have taken the home meanwhile."""
    try:
        return bool(json.loads(file.read_text())["pid"] == pid)
    except FileNotFoundError:
        return False
