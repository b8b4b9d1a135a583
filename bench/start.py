"""How long `trace up` takes to be ready: the first start (makes databases, keys, certificates) and the second."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.report import report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2, help="how many starts after the first")
    size = parser.parse_args().size
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    try:
        first = seconds_to_ready(folder)
        later = [seconds_to_ready(folder) for _ in range(size)]
        light = seconds_to_ready(folder, "--without", "worker")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    best = min(later)
    report(
        "start",
        best,
        "s",
        first_start_s=round(first, 2),
        without_spark_s=round(light, 2),
        share_of_spark=round(1 - light / best, 2),
        settings={"starts": size},
    )


def seconds_to_ready(folder: Path, *options: str) -> float:
    ready = folder / "ready.json"
    argv = [sys.executable, "-m", "trace_platform", "up", "--home", str(folder / "home"), "--port-base", "0"]
    began = time.monotonic()
    process = subprocess.Popen([*argv, "--ready-file", str(ready), *options], stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert process.poll() is None, "trace up ended"
            time.sleep(0.02)
        taken = time.monotonic() - began
        json.loads(ready.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return taken


if __name__ == "__main__":
    main()
