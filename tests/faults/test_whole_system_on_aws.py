"""The quickstart on a whole Trace whose ports are all adapters of AWS, while it suffers faults. 5 minutes.

Processes are killed and frozen, requests to AWS are throttled and fail, and answers are lost of what AWS has done.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

from tests.support.aws.whole_system import REGION, Aws, on_aws
from tests.support.chain.devchain import running as running_chain
from tests.support.faults.storm_checks import Line, Seen, checked, drained, table, wrong
from tests.support.faults.storm_system import CHAIN_ID, FINALITY, SETTINGS, STORY, CheckedSystem, deploy, reached
from tests.support.postgres import RunningServer
from tests.support.programs.storm_clients import Calls
from tests.support.systems.trace_up import TraceUp, is_restarted
from tests.support.waiting import wait_until
from tracelake.adapters.objects_s3 import S3Objects
from tracelake.lite.home import Home
from tracelake.lite.seaweedfs import SeaweedFS
from tracelake_demo.receiver import listening

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long("aws")]

KILLED = ("dispatcher", "worker", "sink", "dispatcher", "gateway", "query")
"""In this order, each as soon as the former is back."""
FROZEN = ("worker", "dispatcher", "sink")
FROZEN_SECONDS = 3.0


@dataclass(frozen=True)
class Aftermath:
    aws: Aws
    system: CheckedSystem
    home: Path
    lines: list[Line]


@pytest.fixture(scope="module")
def aftermath(postgres: RunningServer, moto: str, seaweedfs: SeaweedFS) -> Iterator[Aftermath]:
    folder, name = Path(tempfile.mkdtemp(prefix="trace-aws-")), f"aws_{uuid4().hex[:8]}"
    with ExitStack() as until_the_end:
        until_the_end.callback(shutil.rmtree, folder, ignore_errors=True)
        until_the_end.callback(postgres.drop_database, name)
        dsn = postgres.create_database(name)
        aws = until_the_end.enter_context(on_aws(moto, seaweedfs))
        chain = until_the_end.enter_context(running_chain(chain_id=CHAIN_ID, blocks=STORY.past, finality=FINALITY))
        hook = until_the_end.enter_context(listening())
        nodes = {"TRACE_RPC_POOLS__DEV__ENDPOINTS": f"dev={chain.node('a')}", "TRACE_STATE__DSN": dsn}
        up = TraceUp(folder / "home", env=SETTINGS | aws.variables() | nodes)
        until_the_end.enter_context(up.running())
        aws.reach(up)
        running = until_the_end.enter_context(reached(Home(up.home)))
        running = replace(running, read=S3Objects.of(seaweedfs.objects_for("worker")).get)
        system = CheckedSystem(running, chain, hook, dsn)
        deploy(system, folder)
        aws.fail_now_and_then()
        chain.mine(40)
        running.trace("trigger", "evm_quickstart", "backfill", "--range", f"0-{STORY.past - 1}")
        _kill_in_turn(up)
        _freeze_in_turn(up)
        after, lines, _ = drained(system)
        sections = ("datasets", "alerts", "tasks", "history")
        yield Aftermath(aws, system, up.home, [*lines, *checked(Seen(system, after, Calls(0, 0)), *sections)])


def test_rows_events_and_alerts_are_exactly_what_they_must_be(aftermath: Aftermath) -> None:
    print(table(aftermath.lines))  # noqa: T201 - what a run is for
    assert wrong(aftermath.lines) == []


def test_every_service_of_aws_has_done_its_part(aftermath: Aftermath) -> None:
    aws, place = aftermath.aws, {"region_name": REGION, "endpoint_url": aftermath.aws.moto}
    assert not (aftermath.home / "objects").exists(), "nothing is on the disk"
    assert not (aftermath.home / "keys" / "task").exists(), "no key of tokens is in a file"
    queues = boto3.client("sqs", **place).list_queues(QueueNamePrefix=f"{aws.name}-")["QueueUrls"]
    assert {f"{aws.name}-tasks-ecs_platform", f"{aws.name}-buffer"} <= {url.rpartition("/")[2] for url in queues}
    aliases = boto3.client("kms", **place).list_aliases()["Aliases"]
    assert [item for item in aliases if item["AliasName"].startswith(f"alias/{aws.name}-task-")]
    assert aws.functions.calls, "alerts are found by a function"
    for operation in ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "PutMetricData"):
        assert len(aws.line.requests(operation)) > 1, operation
    assert aws.line.refused > len(KILLED), "AWS has failed all the time"
    figures = boto3.client("cloudwatch", **place).list_metrics(Namespace=f"Trace/{aws.name}")["Metrics"]
    assert "trace_lease_lag_seconds" in {metric["MetricName"] for metric in figures}


def _kill_in_turn(up: TraceUp) -> None:
    for name in KILLED:
        pid = int(up.processes()[name]["pid"])
        os.kill(pid, signal.SIGKILL)
        wait_until(partial(_is_back, up, name, pid), f"{name} is ready again")


def _freeze_in_turn(up: TraceUp) -> None:
    for name in FROZEN:
        pid = int(up.processes()[name]["pid"])
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(FROZEN_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)


def _is_back(up: TraceUp, name: str, before: int) -> bool:
    return is_restarted(up.processes()[name], before)
