"""The worker's operators on an embedded Sail (`TRACE_SPARK__REMOTE`): `python -m bench.operators_on_sail --client DIR`.

DIR has the pyspark that Sail's Python functions import, since Sail refuses the one that a worker has:
`pip install --no-deps --target DIR pyspark-client==4.0.1`.

First, a worker's session is started as a worker starts it, and the error is reported. Then the tests that run operators
are run with three changes that a worker does not make (`bench/sail_session.py`), and what passes is counted by file,
with the reasons of what fails. Last, the processor time of a task that reads a file, runs SQL and writes a file, on
Sail and on a Spark of this process by turns: that of the client and of the server together, which other work on the
machine changes little. `--tests` takes other files; `--size 0` leaves out the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import report
from bench.sail_session import ADDRESS, RESULTS, connected
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.data.files.parquet_writer import OutputFolder, write_frame
from tracelake.domain.access.object_names import Folder
from tracelake.spark.configuration import SparkOptions
from tracelake.spark.java import find_java
from tracelake.spark.session import start_session, stop_session

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = (
    *("tests/operators", "tests/chain_walk/test_ingest.py", "tests/chain_walk/test_follow.py"),
    *("tests/chain_walk/test_compactions_at_once.py", "tests/udf/test_local_run.py"),
)
LEFT_OUT: Final = "not canceled and not lease and not killed and not stops and not hangs"
"""Tests that end a running Python function: Sail does not end it, and answers nobody after it."""
TEST_SECONDS: Final = 60
START_SECONDS: Final = 60.0
ROWS: Final = 1000
WARM: Final = 25
TURN: Final = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", type=Path, required=True, help="a folder with pyspark-client 4.0.1")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="files and folders of tests; none: no tests")
    parser.add_argument("--size", type=int, default=40, help="tasks whose processor time is measured; 0: none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as name:
        folder = Path(name)
        with sail(given.client.resolve()) as (server, address, first):
            as_it_is = as_a_worker(folder, address)
            by_file, reasons = tested(given.tests, address, folder) if given.tests else ({}, {})
        with sail(given.client.resolve()) as (server, address, again):
            costs = cost(server, address, folder, given.size) if given.size else {}
        report(
            "operators_on_sail",
            costs.get("sail_cpu_ms", 0.0),
            "ms of processor time (a task that reads a file of 1,000 rows, runs SQL and writes a file)",
            start_ms=[first["start_ms"], again["start_ms"]],
            start_mb=first["start_mb"],
            worker_session=as_it_is,
            tests=by_file,
            failures=reasons,
            **costs,
            settings={"tasks": given.size, "left_out": LEFT_OUT},
        )


@contextmanager
def sail(client: Path) -> Iterator[tuple[psutil.Process, str, dict[str, float]]]:
    """A server whose Python has our package and `client`; when it listened, and its memory then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = os.pathsep.join([str(client), str(ROOT), *(item for item in sys.path if item.endswith("site-packages"))])
    argv = [sys.executable, "-m", "pysail", "spark", "server", "--port", str(port)]
    began = time.perf_counter()
    process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path, "RUST_LOG": "off"}, cwd=ROOT)
    try:
        while not _listens(port):
            if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                raise SystemExit("Sail did not start")
            time.sleep(0.005)
        seconds, server = time.perf_counter() - began, psutil.Process(process.pid)
        yield server, f"sc://127.0.0.1:{port}", {"start_ms": round(1000 * seconds, 1), "start_mb": megabytes(server)}
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def megabytes(server: psutil.Process) -> float:
    return round(server.memory_info().rss / 2**20, 1)


def as_a_worker(folder: Path, address: str) -> str:
    """Start a session as a worker does, in a process of its own; return "ok" or the error."""
    code = (
        "import sys; from pathlib import Path; from tracelake.spark.configuration import SparkOptions;"
        "from tracelake.spark.session import start_session, warm;"
        "warm(start_session(SparkOptions(Path(sys.argv[1]), remote=sys.argv[2]), None, {}))"
    )
    argv = [sys.executable, "-c", code, str(folder / "worker"), address]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=ROOT)
    return "ok" if done.returncode == 0 else _reason(done.stderr.strip())


def tested(tests: list[str], address: str, folder: Path) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Run the tests, and count by file what passes; skipped ones count as neither."""
    found = folder / "results"
    argv = ["-m", "pytest", "-q", "-p", "bench.sail_session", "-p", "no:cacheprovider", "-n0", "-k", LEFT_OUT]
    env = {**os.environ, ADDRESS: address, RESULTS: str(found)}
    argv = [sys.executable, *argv, f"--timeout={TEST_SECONDS}", *tests]
    subprocess.run(argv, check=False, cwd=ROOT, env=env, stdout=sys.stderr)
    ended: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for line in found.read_text().splitlines():
        test, problem = json.loads(line)
        if problem or test not in ended[test.partition("::")[0]]:  # a test may fail again when it is torn down
            ended[test.partition("::")[0]][test] = problem
    by_file = {file: f"{sum(not why for why in tests.values())} of {len(tests)}" for file, tests in ended.items()}
    reasons = {file: Counter(_reason(why) for why in tests.values() if why) for file, tests in ended.items()}
    return by_file, {file: dict(found) for file, found in reasons.items() if found}


def _reason(text: str) -> str:
    """The words of Sail if there are any, else the last error."""
    said = re.search(r"(not supported|not implemented|unsupported|invalid argument|not found)[^\n]{0,120}", text)
    errors = [line for line in text.splitlines() if re.match(r"(E  )?\s*[\w.]*(Error|Exception|Failed)\b", line)]
    return (said.group(0) if said else errors[-1] if errors else text[-160:]).strip()[:160]


def cost(server: psutil.Process, address: str, folder: Path, size: int) -> dict[str, float]:
    """Milliseconds of processor time of a task on each engine, in turns of ten."""
    far, source = connected(address), folder / "in.parquet"
    pq.write_table(pa.table({"number": list(range(ROWS)), "kind": [n % 7 for n in range(ROWS)]}), source)
    _taken(far, server, source, folder / "sail", WARM)
    session = start_session(SparkOptions(folder / "spark"), find_java(os.environ, folder / "cache"), os.environ)
    try:
        jvm = next(child for child in psutil.Process().children(recursive=True) if child.name() == "java")
        _taken(session, jvm, source, folder / "spark-out", WARM)
        taken = {"sail": 0.0, "spark": 0.0}
        for _ in range(max(1, size // TURN)):
            taken["sail"] += _taken(far, server, source, folder / "sail", TURN)
            taken["spark"] += _taken(session, jvm, source, folder / "spark-out", TURN)
    finally:
        stop_session(session)
        far.stop()  # else it looks for its server at the end of this process
    tasks = max(1, size // TURN) * TURN
    each = {f"{name}_cpu_ms": round(1000 * seconds / tasks, 1) for name, seconds in taken.items()}
    return {**each, "sail_mb": megabytes(server)}


def _taken(session: Any, server: psutil.Process, source: Path, out: Path, tasks: int) -> float:
    """Seconds of this process, of the server and of what the server started."""
    before = _now(server)
    for number in range(tasks):
        place = OutputFolder(DiskObjects(out), Folder.parse(f"s3://bench/{time.monotonic_ns()}/{number}/"))
        session.read.schema("number bigint, kind bigint").parquet(str(source)).createOrReplaceTempView("events")
        rows = session.sql(f"SELECT kind, count(*) AS n FROM events WHERE number <> {number} GROUP BY kind")  # noqa: S608
        write_frame(rows, place, "rows")
    return _now(server) - before


def _now(server: psutil.Process) -> float:
    processes = [psutil.Process(), server, *server.children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


if __name__ == "__main__":
    main()
