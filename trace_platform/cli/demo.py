"""`trace demo`: see it work."""

from __future__ import annotations

import time

from trace_platform.cli import say


def demo() -> None:
    """Start a whole Trace on a chain of its own in a temporary folder, show it, attack it, and leave nothing behind."""
    from trace_platform.cli.app import app
    from trace_platform.lite.demo import demo as run_demo

    began = time.monotonic()
    run_demo(say.out, lambda words: app(list(words), standalone_mode=False))
    say.out.print(f"\n[bold green]Done in {time.monotonic() - began:.0f} s.[/] What to try next:")
    for verb, why in (
        ("make up", "keep it running; Ctrl-C stops it"),
        (".venv/bin/trace devchain", "a chain of your own, to point it at"),
        ("less dags/evm_quickstart.yaml", "the DAG that you just saw, and how to run it yourself"),
        (".venv/bin/trace doctor", "what this machine has and lacks"),
        ("less docs/operators.md", "what a job can do"),
        ("less docs/query.md", "asking by SQL: `trace query`, while it runs"),
    ):
        say.out.print(f"  {verb:<30} {why}", markup=False, highlight=False)
