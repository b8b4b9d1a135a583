"""`trace status`: how every process is."""

from __future__ import annotations

import json as jsonlib
import sys

from trace_platform.cli import say
from trace_platform.cli.options import Home, Json, settings_of


def status(home: Home = None, json: Json = False) -> None:
    """Show every process. Exit code 0: all ready; 1: something is not; 3: nothing runs here."""
    from trace_platform.cli.table import process_table
    from trace_platform.lite.home import Home as HomeFolder
    from trace_platform.lite.home import holder
    from trace_platform.lite.supervisor import Seen

    folder = HomeFolder(settings_of(home).home)
    pid = holder(folder)
    if pid is None or not folder.status.exists():
        if json:
            say.as_json({"running": False, "home": str(folder.root), "processes": []})
        else:
            say.out.print(f"nothing runs in {folder.root}; `trace up` starts it", markup=False)
        sys.exit(3)
    everyone = [Seen(**one) for one in jsonlib.loads(folder.status.read_text())["processes"]]
    if json:
        say.as_json(
            {"running": True, "home": str(folder.root), "pid": pid, "processes": [vars(one) for one in everyone]}
        )
    else:
        say.out.print(f"{folder.root}, held by process {pid}", markup=False)
        say.out.print(process_table(everyone))
    sys.exit(0 if all(one.state == "ready" for one in everyone) else 1)
