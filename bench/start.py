"""How long `trace up` takes to be ready: the first start (makes databases, keys, certificates) and the second.

With `--demo`, also how long `trace demo` takes from start to end, the second time it runs.
"""

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
    parser.add_argument("--demo", action="store_true", help="also `trace demo`, twice: some minutes")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    try:
        first = seconds_to_ready(folder)
        later = [seconds_to_ready(folder) for _ in range(asked.size)]
        light = seconds_to_ready(folder, "--without", "worker")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    second = later[0]
    demos = {"demo_s": round([seconds_of_demo() for _ in range(2)][-1], 1)} if asked.demo else {}
    report(
        "start",
        second,
        "s",
        first_start_s=round(first, 2),
        best_start_s=round(min(later), 2),
        without_spark_s=round(light, 2),
        share_of_spark=round(1 - light / second, 2),
        **demos,
        settings={"starts": asked.size},
    )


def seconds_of_demo() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "tracelake", "demo"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def seconds_to_ready(folder: Path, *options: str) -> float:
    ready = folder / "ready.json"
    argv = [sys.executable, "-m", "tracelake", "up", "--home", str(folder / "home"), "--port-base", "0"]
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
