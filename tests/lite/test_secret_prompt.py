"""`trace secret set` on a terminal: what is typed is not shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.systems.trace_up import LIGHT, TraceUp, new_folder, short_run

VALUE = "typed-5f3a9c"


@pytest.fixture
def system() -> Iterator[TraceUp]:
    for folder in new_folder():
        yield short_run(folder, "--without", LIGHT)


def test_a_value_that_is_typed_is_stored_and_not_shown(system: TraceUp) -> None:
    with system.running():
        terminal, screen = pty.openpty()
        argv = [sys.executable, "-m", "tracelake", "secret", "set", "api_key", "--home", str(system.home)]
        process = subprocess.Popen(
            argv, stdin=screen, stdout=screen, stderr=screen, env=system.env, start_new_session=True
        )
        os.close(screen)
        shown = b""
        while b"Value: " not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, f"{VALUE}\n".encode())
        while b"is set" not in shown:
            shown += os.read(terminal, 1024)
        assert process.wait() == 0
        os.close(terminal)
        assert VALUE.encode() not in shown
        [row] = json.loads(system.trace("secret", "list", "--json").stdout)["secrets"]
        assert row["name"] == "api_key"
