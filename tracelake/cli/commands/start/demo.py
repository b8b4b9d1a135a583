"""`trace demo`: run a whole Trace on a test chain."""

from __future__ import annotations

import time
from pathlib import Path

from tracelake.cli import printing


def demo() -> None:
    """Start a whole Trace on a test chain in a temporary folder, show it, attack it, and remove everything."""
    from tracelake.cli.app import app
    from tracelake_demo.run import demo as run_demo

    began = time.monotonic()
    run_demo(printing.out, lambda words: app(list(words), standalone_mode=False))
    printing.out.print(f"\n[bold green]Done in {time.monotonic() - began:.0f} s.[/] What to try next:")
    for verb, why in _next():
        printing.out.print(f"  {verb:<33} {why}", markup=False, highlight=False)


def _next() -> list[tuple[str, str]]:
    """Suggestions; a checkout has more than an installed package."""
    from importlib.resources import files

    here = Path(".venv/bin/trace")
    trace = str(here) if here.exists() else "trace"
    dag = Path("dags/evm_quickstart.yaml")
    found = dag if dag.exists() else Path(str(files("tracelake_demo"))) / dag.name
    read = {
        "docs/reference/operators/index.md": "what a job can run",
        "docs/how-to/query_with_sql.md": "how to query with SQL",
    }
    return [
        (f"less {found}", "the DAG that just ran; its first lines explain how to run it yourself"),
        (f"{trace} devchain --block-time 1", "a test chain of your own"),
        (f"{trace} up --detach", "run Trace in the background; `trace status` shows it, `trace down` stops it"),
        (f"{trace} doctor", "check whether this machine can run Trace"),
        *((f"less {page}", why) for page, why in read.items() if Path(page).exists()),
    ]
