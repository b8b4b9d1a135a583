"""Two worker processes at one node: together they keep to its limits, and one that dies leaves its share to the other.

Costs two starts of Spark.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.chain.devchain import Devchain, running
from tests.support.chain.proxies import WatchedNode, watched_node
from tests.support.systems.trace_up import TraceUp, new_folder, short_run
from tests.support.waiting import wait_until

IN_FLIGHT, RATE, BATCH = 3, 20.0, 2
TAKES_SECONDS = 0.2
"""Each request of a node: without limits, more than one worker's share would be under way."""
BLOCKS = 160
DAG = """
name: past
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: cut, operator: range_splitter, runtime: dispatcher, config: {chunk: 5}, inputs: [{from: {job: ask}}]}
  - name: ingest
    operator: cryo_ingest
    runtime: ecs_platform
    config: {rpc_pool: dev, chunk: 5}
    inputs: [{from: {job: cut}}]
    outputs: [blocks, transactions, logs]
    heartbeat_interval_seconds: 1s
    heartbeat_timeout_seconds: 20s
    retry: {backoff: 1s, max_backoff: 1s}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()


def two_workers(folder: Path, devchain: Devchain, node: WatchedNode) -> TraceUp:
    pool = {"ENDPOINTS": node.url, "CHAIN_ID": str(devchain.chain_id), "MAX_CONCURRENCY": str(IN_FLIGHT)}
    pool |= {"REQUESTS_PER_SECOND": str(RATE), "BATCH_SIZE": str(BATCH)}
    env = {f"TRACE_RPC_POOLS__DEV__{name}": value for name, value in pool.items()}
    env |= {"TRACE_WORKER__MIN": "2", "TRACE_WORKER__MAX": "2", "TRACE_FLOW__RPC_LEASE_SECONDS": "2"}
    # The one that dies is not started again while the test lasts.
    env |= {"TRACE_UP__BACKOFF_SECONDS": "600", "TRACE_UP__BACKOFF_MAX_SECONDS": "600"}
    return short_run(folder, "--without", "sink,query,scheduler,delivery,runner", env=env)


@pytest.mark.long
def test_two_processes_keep_to_one_limit_and_the_share_of_one_that_is_killed_comes_back(folder: Path) -> None:
    with (
        running(blocks=BLOCKS) as devchain,
        watched_node(devchain.url, TAKES_SECONDS) as node,
        two_workers(folder, devchain, node).running() as system,
    ):
        wait_until(lambda: shares(system)[0] == 2, "both workers have a share")
        request = ask_for_all(system)
        wait_until(lambda: shares(system) == (2, IN_FLIGHT) and node.calls > 4 * RATE, "both use the node")
        os.kill(system.processes()["worker-2"]["pid"], signal.SIGKILL)
        wait_until(lambda: shares(system) == (1, IN_FLIGHT), "the other has all of it")
        wait_until(lambda: system.progress(request)["ended"], "every task has ended")
        assert system.progress(request)["succeeded"]
    assert 1 < node.most <= IN_FLIGHT
    node.check_rate(RATE, node.came[0][0] - 1)
    assert node.calls >= 2 * BLOCKS, "blocks and their receipts"


def ask_for_all(system: TraceUp) -> str:
    file, request = system.home.parent / "past.yaml", str(uuid4())
    file.write_text(DAG)
    deployed = system.trace("dag", "deploy", str(file), "--activate")
    assert deployed.returncode == 0, deployed.stderr
    done = system.trace("trigger", "past", "ask", "--range", f"0-{BLOCKS - 1}", "--request-id", request)
    assert done.returncode == 0, done.stderr
    return request


def shares(system: TraceUp) -> tuple[int, int]:
    """How many workers share the pool, and how many requests they may have under way together."""
    with system.client() as client:
        pools = client.get("/v1/in-flight").json()["rpc_pools"]
    return (pools[0]["workers"], pools[0]["leased"]) if pools else (0, 0)
