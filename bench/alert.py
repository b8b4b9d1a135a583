"""From an event to an alert's row: `python -m bench.alert [--size RUNS]`, on a whole system as `trace up` starts it.

The clock starts when an event is sent to the public api, and ends when the row can be read. In between: routing, the
claim, a function in a warm sandbox that raises one alert, the batch's publish, the sink's Spark, its commit.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import report
from tracelake.lite.home import Home
from tracelake_demo.system import Running, up

CODE = """
from datetime import datetime, timezone

from trace_udf import udf


@udf
def handler(task):
    for alert in task.alerts:
        task.alert(alert, dedupe_key=str(task.scope["cursor"]), event_time=datetime.now(timezone.utc))
"""
DAG = """
name: bench
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: watch
    operator: alert_evaluate
    runtime: lambda
    udf: {folder: watch}
    config: {definitions: [bench]}
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: alert_events}]
publish:
  alert_events:
    storage: postgres
    write_mode: buffered
    columns:
      alert_definition_id: text
      dedupe_key: text
      event_time: {type: timestamp, nullable: false}
      chain_id: bigint
      block_number: bigint
      block_hash: bytes
      tx_hash: bytes
      severity: {type: text, nullable: false}
      payload: json
    unique_key: [alert_definition_id, dedupe_key]
"""
WARM = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=30, help="runs")
    size = parser.parse_args().size
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    try:
        with up(Home(folder / "home"), lambda _: None, {}) as system:
            system.until_all_is_ready()
            _deploy(system, folder)
            times = sorted([_seconds(system, run) for run in range(size + WARM)][WARM:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    p95 = times[int(len(times) * 0.95)]
    middle = statistics.median(times)
    report("alert", 1000 * middle, "ms p50", p95_ms=round(1000 * p95, 1), settings={"runs": size})


def _deploy(system: Running, folder: Path) -> None:
    (folder / "watch").mkdir()
    (folder / "watch" / "main.py").write_text(CODE)
    (folder / "dag.yaml").write_text(DAG)
    system.trace("alert", "create", "bench")
    system.trace("dag", "deploy", str(folder / "dag.yaml"), "--activate")


def _seconds(system: Running, run: int) -> float:
    headers = {"Authorization": f"Bearer {system.ready['user_token']}"}
    before, began = _commits(system), time.perf_counter()
    answer: Any = system.http.post("/v1/dags/bench/jobs/ask/trigger", json={"cursor": run}, headers=headers)
    assert answer.is_success, answer.text
    while _commits(system) == before:
        assert time.perf_counter() - began < 180, "no alert came"
        time.sleep(0.005)
    return time.perf_counter() - began


def _commits(system: Running) -> int:
    found: int | None = system.get("/v1/datasets/alert_events").json()["last_commit"]
    return found or 0


if __name__ == "__main__":
    main()
