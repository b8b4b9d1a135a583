"""A start does not look for garbage among what it imports, and each process looks for it from then on."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distribution

import pytest

from tests.support import ROOT

WATCHED = """
import gc, json, sys
early, last = [], sys.argv.pop(1)
def imported(): return hasattr(sys.modules.get(last), "main")
from tracelake.__main__ import main
gc.collect()  # the next look would come with the next 700 objects
gc.callbacks.append(lambda phase, _: None if imported() else early.append(phase))
try:
    main()
finally:
    print(json.dumps({"early": len(early), "enabled": gc.isenabled(), "frozen": gc.get_freeze_count()}))
"""


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--version"], "tracelake.cli.app"),
        (["dispatcher", "--settings", "-"], "tracelake.dispatcher.process"),
        (["query", "--settings", "-"], "tracelake.query.process"),
    ],
    ids=["command line", "dispatcher", "query"],
)
def test_garbage_is_looked_for_after_the_imports_and_not_among_them(words: list[str], last: str) -> None:
    """The processes end at once, because their settings lack a database."""
    argv = [sys.executable, "-c", WATCHED, last, *words]
    ended = subprocess.run(argv, input="{}", cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["early"] == 0, "nothing was looked for while it imported"
    assert found["enabled"]
    assert found["frozen"] > 50_000, "what was imported is left alone later too"


def test_the_command_is_what_python_m_runs() -> None:
    [script] = distribution("tracelake").entry_points.select(group="console_scripts", name="trace")
    assert script.value == "tracelake.__main__:main"
