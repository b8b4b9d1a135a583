"""The model of backpressure (`models/valve.pml`), checked by Spin in every interleaving where Spin is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "models" / "valve.pml"
NEEDED = ("spin", "gcc")

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, NEEDED)), reason="the model is checked where spin and gcc are installed"
)


def errors(folder: Path, *defines: str) -> int:
    """How many of its checks the model fails, with these changes."""
    subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run(["gcc", "-O2", "-DNFAIR=4", "-o", "pan", "pan.c"], cwd=folder, check=True, capture_output=True)
    argv = [str(folder / "pan"), "-a", "-f", "-m1000000", "-N", "drains"]
    output = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout
    assert "max search depth too small" not in output
    found = re.search(r"errors: (\d+)", output)
    assert found is not None, output
    return int(found[1])


def test_everything_drains_in_order_however_processes_interleave_and_passes_die(tmp_path: Path) -> None:
    assert errors(tmp_path) == 0


@pytest.mark.parametrize("change", ["OVERTAKES", "RESUMED_BY_SIGNAL"])
def test_the_model_finds_an_event_that_overtakes_and_a_resume_that_is_lost(tmp_path: Path, change: str) -> None:
    assert errors(tmp_path, f"-D{change}") > 0
