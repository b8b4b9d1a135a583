"""What `trace` itself answers, before any verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path


def trace(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tracelake", *words]
    return subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, check=True)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert trace("--version").stdout == f"trace {version('tracelake')}\n"


def test_an_unknown_variable_is_warned_of_beside_the_answer(tmp_path: Path) -> None:
    """As Kubernetes sets it beside a service named trace-gateway."""
    shown = trace("config", "show", "--json", "--home", str(tmp_path), TRACE_GATEWAY_PORT="tcp://10.0.0.1:443")
    assert json.loads(shown.stdout)
    assert shown.stderr.startswith("TRACE_GATEWAY_PORT is not a setting of Trace: ignored")
