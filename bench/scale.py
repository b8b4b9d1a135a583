"""The quickstart's backfill with 1, 2 and 4 executors: `python -m bench.scale [--size N] [--executors 1 2 4]`.

A standalone master, one Spark worker for each executor (one core, 512 MB), `trace worker` and a dev chain are processes
of this machine; the Dispatcher runs in this one, on Postgres. Blocks a second from the trigger until nothing is left to
do: fetched, proved, written, checked, decoded and summed up by day. `speed_up` is the rate by that of the fewest
executors, and `efficiency` the speed-up by how many times as many executors there are: at most the machine's cores can
work at once, and the dev chain, Postgres and the Dispatcher need some of them too.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import uvloop
from ruamel.yaml import YAML

from bench.report import report
from tests.support.chain.devchain import Devchain, running
from tests.support.postgres import RunningServer
from tests.support.postgres import running as postgres_running
from tests.support.spark.cluster import spark_cluster, trace_worker
from tests.support.systems.chain import ChainSystem
from tests.support.systems.walk import walking
from tracelake.lite.network_ports import free_port
from tracelake.lite.postgres import Cluster
from tracelake.operators.helpers.chain_tables import ALL
from tracelake.store.migrate import Database, migrate
from tracelake_demo.run import quickstart

DAG = "evm_quickstart"
BACKFILL = ("backfill", "pieces", "ingest", "decode", "daily", "blocks_checked")
"""The jobs of the quickstart that a backfill reaches; the others follow the tip."""


DATABASES: tuple[Database, ...] = ("state", "queue", "data")


@dataclass(frozen=True)
class Taken:
    seconds: float
    rows: int


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=16_000, help="blocks; a task has 2000")
    parser.add_argument("--executors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--turns", type=int, default=2, help="backfills for each number; the first one warms")
    given = parser.parse_args()
    folder = _folder()
    cluster = Cluster("bench", folder / "data", folder / "s", free_port())
    try:
        with postgres_running(cluster) as server, running(blocks=given.size + 1) as devchain:
            found = {
                count: [
                    await _turn(server, devchain, folder / f"{count}_{turn}", count, given.size)
                    for turn in range(given.turns)
                ]
                for count in sorted(given.executors)
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rates = {count: given.size / min(turn.seconds for turn in turns) for count, turns in found.items()}
    assert len({turn.rows for turns in found.values() for turn in turns}) == 1, "each has the same rows"
    fewest = min(rates)
    report(
        "scale",
        max(rates.values()),
        "blocks/s",
        rates={count: round(rate, 1) for count, rate in rates.items()},
        speed_up={count: round(rate / rates[fewest], 2) for count, rate in rates.items()},
        efficiency={count: round(rate / rates[fewest] * fewest / count, 2) for count, rate in rates.items()},
        seconds_by_turn={count: [round(turn.seconds, 1) for turn in turns] for count, turns in found.items()},
        rows=next(iter(found.values()))[0].rows,
        settings={"size": given.size, "turns": given.turns, "executor_cores": 1, "executor_memory": "512m"},
    )


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="trace-bench-"))
    folder.chmod(0o711)
    return folder


async def _turn(server: RunningServer, devchain: Devchain, place: Path, executors: int, size: int) -> Taken:
    _make(place)
    dsns = {name: _database(server, name, f"{name}_{place.name}") for name in DATABASES}
    with spark_cluster(place / "spark") as cluster:
        master = cluster.master()
        for _ in range(executors):
            cluster.worker(master)
        settings = {
            **cluster.settings(master),
            "TRACE_SPARK__EXECUTOR_MEMORY": "512m",
            "TRACE_SPARK__QUICK_COMPILER": "false",
            "TRACE_RPC_POOLS__DEV__ENDPOINTS": devchain.node("a"),
            "TRACE_RPC_POOLS__DEV__CHAIN_ID": str(devchain.chain_id),
            "TRACE_LOG__LEVEL": "warning",
        }
        async with walking(dsns["state"], dsns["queue"], place) as walk:
            system = ChainSystem(walk, dsns["data"], None, devchain)
            await system.deploy(backfill_only(quickstart()))
            async with trace_worker(walk, place, (dsns["queue"], dsns["data"]), settings):
                await system.trigger(DAG, "backfill", 0, 0)  # the worker has started, and Python has its modules
                await system.settled()
                began = time.perf_counter()
                await system.trigger(DAG, "backfill", 1, size)
                await system.settled()
                seconds = time.perf_counter() - began
            failures = await system.failures()
            assert not failures, failures
            tables = [await system.cold(DAG, "ingest", output) for output in range(len(ALL))]
    blocks = tables[ALL.index("blocks")]
    assert blocks is not None
    assert blocks.num_rows == size + 1
    return Taken(seconds, sum(table.num_rows for table in tables if table is not None))


def _make(place: Path) -> None:
    place.mkdir()


def _database(server: RunningServer, database: Database, name: str) -> str:
    dsn = server.create_database(name)
    migrate(dsn, database)
    return dsn


def backfill_only(text: str) -> str:
    """The same DAG with the jobs of the backfill alone."""
    document: dict[str, Any] = YAML(typ="safe").load(text)
    document["jobs"] = [job for job in document["jobs"] if job["name"] in BACKFILL]
    for job in document["jobs"]:
        if "inputs" in job:
            job["inputs"] = [item for item in job["inputs"] if item["from"].get("job") in BACKFILL]
    document["publish"] = {name: item for name, item in document["publish"].items() if item.get("job") in BACKFILL}
    written = StringIO()
    YAML(typ="safe").dump(document, written)
    return written.getvalue()


if __name__ == "__main__":
    uvloop.run(main())
