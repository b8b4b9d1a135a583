"""`trace demo` as a newcomer runs it: everything real, in a folder of the test's own. A minute on two free cores."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

DATASETS = (
    *("past_blocks", "past_transactions", "past_logs", "recent_blocks", "recent_transactions", "recent_logs"),
    *("hot_blocks", "transfers", "daily_volume", "blocks_checked", "critical_days"),
)
NOT_YOURS = {
    "TRACE_HOME": "/nowhere/home",
    "TRACE_STATE__DSN": "postgresql://user@127.0.0.1:1/state",
    "TRACE_DATA__DSN": "postgresql://user@127.0.0.1:1/data",
    "TRACE_QUEUE__DSN": "postgresql://user@127.0.0.1:1/queue",
    "TRACE_OBJECTS__BACKEND": "s3",
    "TRACE_CLIENT__GATEWAY_URL": "https://127.0.0.1:1",
    "TRACE_CLIENT__TOKEN": "of another system",
}
"""Settings of another system of the user. None of its services answers, so a call to one would fail."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as names of sockets are; and open to the user that Postgres runs as."""
    made = Path(tempfile.mkdtemp(prefix="trace-test-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tracelake", "demo"],
        env={**os.environ, **NOT_YOURS, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.long  # `make demo` is the same
def test_the_demo_shows_everything_finds_it_right_and_touches_nothing_of_yours(folder: Path) -> None:
    process = start(folder)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    for dataset in DATASETS:
        assert re.search(rf"^  {dataset} .*  yes, ", output, re.MULTILINE), (dataset, output)
    for words in (
        "kill -9 of the Dispatcher: restarted",
        "kill -9 of the runner",
        "retried, and completed",
        "reorg: the last 11 blocks",
        "2 ranges of 50 final blocks are Parquet now",
        "none is false",
        "each delivered once to the webhook, signed",
        "on Sail ",
        "on Spark ",
        "trace why transfers 0-499",
        "tasks of flow.load were queued (limit 20)",
        "resumed when the queue was short",
        "queries saw the former rows or the new ones, and never a mixture",
        "trace source show    flow.tick",
        "What to try next",
    ):
        assert words in output
    assert left_of(folder) == []


def test_ctrl_c_in_the_middle_of_the_demo_leaves_nothing(folder: Path) -> None:
    process = start(folder)
    assert process.stdout is not None
    for line in process.stdout:
        if "Access: TLS" in line:
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=SECONDS)
    assert (process.returncode, "Traceback" in output) == (130, False), output
    assert left_of(folder) == []


def left_of(folder: Path) -> list[str]:
    """Files, and processes that name the folder in their arguments or their environment, or stand in it."""
    deadline = time.monotonic() + SECONDS
    while (found := [*map(str, folder.iterdir()), *_processes(str(folder))]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _processes(folder: str) -> Iterator[str]:
    for place in Path("/proc").glob("[0-9]*"):
        try:
            described = b"".join((place / what).read_bytes() for what in ("cmdline", "environ"))
            described += bytes((place / "cwd").readlink())
        except OSError:
            continue  # it ended, or is another's
        if folder.encode() in described and int(place.name) != os.getpid():
            yield f"{place.name}: {(place / 'cmdline').read_bytes()!r}"
