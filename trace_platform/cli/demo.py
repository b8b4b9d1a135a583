"""`trace demo`: see it work."""

from __future__ import annotations

import time

from trace_platform.cli import say


def demo() -> None:
    """Start a whole Trace in a temporary folder, show it, attack it, and leave nothing behind."""
    from trace_platform.lite.demo import demo as run_demo

    began = time.monotonic()
    run_demo(lambda title: say.out.print(f"\n[bold]{title}[/]"), lambda line: say.out.print(f"  {line}", markup=False))
    say.out.print(f"\n[bold green]Done in {time.monotonic() - began:.0f} s.[/] What to try next:")
    for verb, why in (
        ("make up", "keep it running; Ctrl-C stops it"),
        (".venv/bin/trace doctor", "what this machine has and lacks"),
        (".venv/bin/trace config show", "every setting, and why it is there"),
        ("less docs/data_model.md", "the tables behind the promises"),
    ):
        say.out.print(f"  {verb:<28} {why}", markup=False)
