"""`tools/get_anvil.py` never fails `make test`, and installs the pinned version only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

TOOL = ROOT / "tools" / "get_anvil.py"
NPM = f"""#!{sys.executable}
import json, pathlib, sys, tarfile
folder = pathlib.Path(sys.argv[sys.argv.index("--pack-destination") + 1])
(folder / "anvil").write_text("#!/bin/sh")
with tarfile.open(folder / "it.tgz", "w:gz") as packed:
    packed.add(folder / "anvil", "package/bin/anvil")
print(json.dumps([{{"filename": "it.tgz"}}]))
"""
OFFLINE = f"""#!{sys.executable}
import sys
sys.exit("npm error code ECONNREFUSED")
"""


@pytest.mark.parametrize(
    ("npm", "said"),
    [
        (None, "there is no npm"),
        (OFFLINE, "npm could not fetch it: npm error code ECONNREFUSED"),
        (NPM, "not the anvil that was expected"),
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64" or sys.platform != "linux", reason="anvil is pinned for no other")
def test_without_the_expected_anvil_there_is_none_and_a_sentence(tmp_path: Path, npm: str | None, said: str) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(TOOL, tmp_path / "tools")
    if npm is not None:
        # A program's first line can name no path with a space, and the checkout may lie in one.
        (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
        (tmp_path / "bin" / "npm").write_text(npm.replace(sys.executable, str(tmp_path / "python")))
        (tmp_path / "bin" / "npm").chmod(0o755)
    done = subprocess.run(
        [sys.executable, tmp_path / "tools" / TOOL.name],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stderr
    assert "skipped" in done.stderr
    assert not list(tmp_path.glob(".cache/*"))
