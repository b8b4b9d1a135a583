"""`trace`, whose `up` also writes what it gives each process into a file: what somebody has who takes a process over.

The file is named by the environment. Processes that are not started are given the same, in the file alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracelake.cli import main
from tracelake.lite import up
from tracelake.lite.child import Child
from tracelake.lite.home import write_private
from tracelake.lite.plan import children
from tracelake.runtime.process import PROCESSES

WRITTEN = "RECORDED_UP_FILE"


def recording(names: Sequence[str], *settings: Any, **more: Any) -> list[Child]:
    made = {child.name: child for child in children(PROCESSES, *settings, **more)}
    given = {name: json.loads(child.launch().stdin or b"{}") for name, child in made.items()}
    write_private(Path(os.environ[WRITTEN]), json.dumps(given))
    return [made[name] for name in names]


if __name__ == "__main__":
    vars(up)["children"] = recording
    main()
