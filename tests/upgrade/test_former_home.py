"""A home that an earlier version made and used is started with this version: real processes, real databases.

The archive was made by `tests/support/upgrade/make_home.py` with the earlier version; `expected_*.json` beside it is
what the API of that version said of it. The package of 0.1.0 was called `trace_platform`.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.upgrade.make_home import FINALITY, FIRST_HEAD, PAST, SIZE, deliveries, describe_dag
from tests.support.upgrade.whole_trace import ENDED, Devchain, Trace, Webhook, devchain, webhook
from tests.support.waiting import wait_until
from tracelake.lite.postgres import Cluster, _account
from tracelake.store.migrate import MIGRATIONS

PACKAGE: Final = "tracelake"
HERE: Final = Path(__file__).parent
FORMER: Final = "0_1_0"
LIGHT: Final = "worker,sink,query,scheduler,delivery,runner"
CLUSTER_OF: Final = {"state": "state", "data": "data", "queue": "data"}
NOTES: Final = 3
"""Ranges of 1000 blocks that were requested: one was done, one was left to do, one is new."""
APPLIED: Final = (
    "SELECT string_agg(concat_ws(' ', id, sha256, applied_at), ',' ORDER BY id) FROM trace_migrations.applied"
)
Migrations = dict[str, dict[str, str]]
"""By database and name: the hash of the file, and when it was applied."""


@dataclass
class Upgraded:
    """The former home, run by this version."""

    trace: Trace
    chain: Devchain
    hook: Webhook
    dags: Path
    expected: dict[str, Any]
    running: ExitStack
    """Closed: it is stopped. See `upgraded`."""
    former_migrations: Migrations
    received: list[tuple[str, str]] = field(default_factory=list)
    """By the webhook, when all that was left to do is done: delivery ids and keys of events."""
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What they hold then."""
    described: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The versions of its DAGs, then."""

    def tasks(self) -> dict[str, dict[str, Any]]:
        return {task["id"]: task for task in self.trace.tasks()}

    def left_tasks(self) -> dict[str, dict[str, Any]]:
        """Those that the former version left queued, or failed with another attempt to come."""
        return {
            id_: task
            for id_, task in self.expected["tasks"].items()
            if task["job"] != "follow" and (task["status"] not in ENDED or task["job"] == "yearly")
        }

    def left_work_is_done(self) -> bool:
        tasks = self.tasks()
        states = {tasks[id_]["status"] for id_ in self.left_tasks()}
        states |= {item["status"] for item in deliveries(self.trace).values()}
        return states == {"Completed", "Sent"} and self.trace.is_quiet()


@pytest.fixture(scope="module")
def once_upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgraded]:
    """Yields when all that was left to do is done."""
    folder = tmp_path_factory.mktemp("upgrade")
    unpack(HERE / f"home_{FORMER}.tar.xz", folder)
    with ExitStack() as until_the_end:
        hook = until_the_end.enter_context(webhook())
        journal = folder / "chain.jsonl"
        chain = until_the_end.enter_context(devchain(PACKAGE, journal, blocks=FIRST_HEAD, finality=FINALITY))
        settings = {
            "TRACE_WORKER__FILES_FOLDER": str(folder / "files"),
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={chain.url}",
        }
        trace = Trace(PACKAGE, folder / "home", settings)
        expected = json.loads((HERE / f"expected_{FORMER}.json").read_text())
        former = applied(trace.home)
        running = until_the_end.enter_context(ExitStack())
        running.enter_context(trace.up())
        made = Upgraded(trace, chain, hook, folder / "dags", expected, running, former)
        trace.run("alert", "channel", "update", "ops", "--url", hook.url)
        wait_until(made.left_work_is_done, "what the former version left is done")
        made.received = list(hook.events)
        made.datasets = {name: trace.content(name) for name in expected["datasets"]}
        made.described = {name: describe_dag(trace, name) for name in expected["dags"]}
        yield made


@pytest.fixture
def upgraded(once_upgraded: Upgraded) -> Upgraded:
    """It runs: the one test that stops it may come first."""
    if not once_upgraded.trace.is_running():
        once_upgraded.running.enter_context(once_upgraded.trace.up())
    return once_upgraded


def unpack(archive: Path, folder: Path) -> None:
    """With the owners that the files of Postgres have where root runs it."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")  # which keeps the modes of folders
    account = _account("nobody")
    if account is not None:
        owner = f"{account.pw_uid}:{account.pw_gid}"
        subprocess.run(["chown", "-R", owner, *(folder / "home" / "postgres").iterdir()], check=True)


def applied(home: Path) -> Migrations:
    """Which migrations the databases of a stopped home have; read in single-user mode, which needs no password."""
    return {database: _applied(home / "postgres" / name, database) for database, name in CLUSTER_OF.items()}


def _applied(directory: Path, database: str) -> dict[str, str]:
    server = Cluster(database, directory, directory, 0).launch()
    said = subprocess.run(
        [server.argv[0], "--single", "-j", *server.argv[1:], database],
        input=f"{APPLIED};\n\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=server.cwd,
        env=dict(server.env),
        user=server.user,
        group=server.group,
        extra_groups=None if server.user is None else [],
    ).stdout
    (listed,) = re.findall(r'string_agg = "([^"]*)"', said)
    return dict(row.split(" ", 1) for row in listed.split(","))


def test_every_dataset_holds_the_rows_that_it_held(upgraded: Upgraded) -> None:
    compared = ("rows", "sha256")
    assert upgraded.datasets == {
        name: {key: dataset[key] for key in compared} for name, dataset in upgraded.expected["datasets"].items()
    }
    storages = {dataset["storage"] for dataset in upgraded.expected["datasets"].values() if dataset["rows"]}
    assert storages == {"parquet", "postgres", "buffered"}


def test_commits_are_counted_on_from_where_they_were(upgraded: Upgraded) -> None:
    now = {row["name"]: row["last_commit"] for row in upgraded.trace.fetch("/v1/datasets")["datasets"]}
    expected = upgraded.expected["datasets"]
    former = {name: dataset["last_commit"] for name, dataset in expected.items() if dataset["last_commit"]}
    assert {name: now[name] for name in former if now[name] < former[name]} == {}
    assert now["past_blocks"] > former["past_blocks"], "the backfill that was queued has committed"


def test_versions_ended_tasks_and_their_logs_are_as_they_were(upgraded: Upgraded) -> None:
    expected, tasks = upgraded.expected, upgraded.tasks()
    assert upgraded.described == expected["dags"]
    assert len(expected["dags"]["evm_quickstart"]["versions"]) == 2, "one is active, one is older"
    left = upgraded.left_tasks()
    ended = {id_: task for id_, task in expected["tasks"].items() if id_ not in left and task["status"] in ENDED}
    assert {task["status"] for task in ended.values()} == {"Completed", "Canceled", "Failed"}
    assert {id_: {key: tasks[id_][key] for key in task} for id_, task in ended.items()} == ended
    assert {task: upgraded.trace.log_of(task) for task in expected["logs"]} == expected["logs"]


def test_what_was_queued_or_waited_for_its_next_attempt_runs_once_to_its_end(upgraded: Upgraded) -> None:
    assert upgraded.expected["outbox"] == ["enqueue_task"], "one message had not reached the queue"
    tasks = upgraded.tasks()
    ends = {(task["job"], tasks[id_]["status"], tasks[id_]["attempt"]) for id_, task in upgraded.left_tasks().items()}
    assert ends == {(job, "Completed", 1) for job in ("ingest", "products", "note")} | {("yearly", "Completed", 2)}


def test_pending_alerts_are_sent_once_and_those_sent_before_are_not_sent_again(upgraded: Upgraded) -> None:
    former = upgraded.expected["deliveries"]
    pending = sorted((id_, item["dedupe_key"]) for id_, item in former.items() if item["status"] == "Pending")
    assert pending
    assert upgraded.expected["received"]
    assert upgraded.hook.unsigned == 0, "the channel's secret is the one it was"
    assert not {event for _, event in upgraded.received} & set(upgraded.expected["received"])
    assert sorted(upgraded.received) == pending
    now = deliveries(upgraded.trace)
    assert {id_: now[id_] for id_ in former} == {id_: item | {"status": "Sent"} for id_, item in former.items()}


def test_the_same_dag_again_is_the_same_version_and_a_changed_one_is_a_new_version(upgraded: Upgraded) -> None:
    """Not one with `udf: {folder: ...}`: a bundle has the SDK of the version that builds it."""
    trace, former = upgraded.trace, upgraded.expected["dags"]
    same = trace.run("dag", "deploy", str(upgraded.dags / "files_quickstart.yaml"), "--activate")
    assert same["deployed"]["dag_version_id"] == former["files_quickstart"]["active"]
    assert (same["deployed"]["created"], same["activated"]["changed"]) == (False, False)
    changed = upgraded.dags / "ranges.yaml"
    changed.write_text(changed.read_text().replace("chunk: 50", "chunk: 100"))
    new = trace.run("dag", "deploy", str(changed), "--now")
    assert (new["deployed"]["created"], new["activated"]["changed"]) == (True, True)
    assert new["activated"]["former"] == former["ranges"]["active"]
    pieces = trace.fetch("/v1/datasets/pieces")
    folder, org = "s3://trace/datasets/", trace.fetch("/v1/me")["org_id"]
    of_org = {True: f"{org[:18]}/", False: ""}
    for row in pieces["generations"]:
        place = f"{folder}{of_org[row['current']]}{pieces['dataset_uuid']}/{row['dataset_version']}/"
        assert row["storage_location"] == place, "a new generation is in a folder of its organisation, and only that"
    assert {row["current"] for row in pieces["generations"]} == {True, False}


def test_new_work_is_accepted_and_the_chain_is_followed_on(upgraded: Upgraded) -> None:
    trace, chain, compacted = upgraded.trace, upgraded.chain, len(upgraded.trace.tasks(job="compact"))
    trace.run("trigger", "ranges", "ask", "--range", "2000-2999")
    chain.order("mine", blocks=2 * SIZE)
    wait_until(lambda: trace.followed_to() == chain.head, "the new blocks are followed")
    wait_until(lambda: len(trace.tasks(job="compact", status="Completed")) == compacted + 2, "two more are compacted")
    wait_until(lambda: len(trace.tasks(job="note", status="Completed")) >= NOTES and trace.is_quiet(), "all is done")
    wait_until(lambda: len(upgraded.hook.events) > len(upgraded.received), "the alert of block 67 is sent")
    wait_until(trace.is_quiet, "what follows from it is done")
    assert trace.content("hot_blocks")["rows"] == chain.head + 1 - PAST
    events = [event for _, event in upgraded.hook.events]
    assert len(events) == len(set(events)), "each is sent once"
    assert not set(events) & set(upgraded.expected["received"])


def test_each_migration_is_applied_once_and_a_second_start_applies_none(upgraded: Upgraded) -> None:
    """It stops the system, since the databases of a running one accept no other connection."""
    upgraded.running.close()
    former, first = upgraded.former_migrations, applied(upgraded.trace.home)
    files = {database: {path.stem for path in (MIGRATIONS / database).glob("*.sql")} for database in CLUSTER_OF}
    assert {database: set(names) for database, names in first.items()} == files
    assert {database: first[database] | names for database, names in former.items()} == first
    with upgraded.trace.up("--without", LIGHT):
        pass
    assert applied(upgraded.trace.home) == first
