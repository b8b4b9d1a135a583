"""Queries through the Query service: `python -m bench.query [--size N] [--engine spark]`, and with `--bombs`.

A small dataset of Parquet files; the same query, warm, sent to the service (its api, with TLS and a look-up at a
Dispatcher that answers at once), to a bare Spark session that has the view already, and to DuckDB on the same files
where that is installed. In turn, so that whatever else the machine does falls on all. The service keeps the plan of a
query that is repeated on Spark (never its rows), so the headline and its ratios are of a text that nobody asked before,
`new_group`, where all sides plan; so are those of the eight clients at once. `ratio_asked_before` is of the others.
Beside that the first query after the start, the first one after the engines were killed, the memory with three
organisations before and after a query needs Spark, the gate by itself, what a new text costs in processor time, and
each aim with whether it was met. All on the event loop that `trace query` has, on which the clients are too.

With `--bombs`, of all kinds or of those that are named: the p95 of one organisation's queries, while another sends
queries without a pause that no gate refuses and that take all the time, memory or bytes they can get; by turns with and
without them. They are sent by another process, `bench/bombs.py`, so that their answers are not read on the service's
event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import ssl
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import uuid4, uuid5

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from pydantic import SecretStr

from bench.bombs import BOMBER, BOMBS, throwing
from bench.query_aims import aims, gate_ms, processor_ms, restarted, three_organisations
from bench.report import report
from tests.support.identity.service_tokens import as_service
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.access.object_names import Folder
from tracelake.lite.certificates import ensure_certificates
from tracelake.query.process import serving
from tracelake.query.spark.jvm import QuerySpark, query_options
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.metrics import Metrics
from tracelake.runtime.process import COLLECT_AFTER
from tracelake.settings import DataSettings, Settings, TlsSettings, load_settings
from tracelake.spark.owner import SparkOwner
from tracelake.spark.thread_times import thread_times
from tracelake.wire.client import DispatcherClient
from tracelake.wire.internal.comparisons import ComparisonTaken
from tracelake.wire.internal.queries import (
    AuditAnswer,
    AuditRow,
    ColdFilesAnswer,
    RelationAnswer,
    RelationsAnswer,
    RelationsRequest,
)
from tracelake.wire.service.headers import ServiceUser
from tracelake.wire.task.outputs import PartitionFiles

ROWS: Final = 100_000
FILES: Final = 2
CLIENTS: Final = 8
QUERIES: Final = {
    "count": "SELECT count(*) AS n FROM events",
    "group": "SELECT kind, count(*) AS n, max(number) AS m FROM events GROUP BY kind ORDER BY kind",
    "filter": "SELECT number, text FROM events WHERE number BETWEEN 500 AND 520 ORDER BY number LIMIT 20",
    "new_group": (
        "SELECT kind, count(*) AS n, max(number) AS m FROM events WHERE number <> {turn} GROUP BY kind ORDER BY kind"
    ),
}
ON_SPARK: Final = "SELECT kind, stddev(number) AS n FROM events GROUP BY kind"
"""Sail is not known to give its rows."""
TURNS: Final = 10
"""Of queries alone and beside bombs."""
Ask = Callable[..., Awaitable[None]]
Columns = Sequence[tuple[str, str]]
COLUMNS: Final[Columns] = (("number", "bigint"), ("kind", "bigint"), ("text", "string"))
DATASET, VERSION = uuid4(), uuid4()
FOLDER: Final = Folder.parse(f"s3://trace/datasets/{DATASET}/{VERSION}/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=30, help="how often each query is sent to each")
    parser.add_argument("--engine", choices=("spark", "auto"), default="auto", help="the service's `query.engine`")
    parser.add_argument(
        "--bombs",
        nargs="*",
        choices=BOMBS,
        help="what one organisation's bombs, of all kinds or of these, cost another",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        work = measure if given.bombs is None else partial(bombed, kinds=given.bombs or list(BOMBS))
        uvloop.run(work(Path(folder), given.size, given.engine))


async def measure(home: Path, size: int, engine: str) -> None:
    objects = DiskObjects(home / "objects")
    parts = made(objects)
    async with service(home, objects, parts, engine=engine) as running:
        ask = running.ask
        began = time.perf_counter()
        await ask(QUERIES["count"])
        first = milliseconds(time.perf_counter() - began)
        memory = await three_organisations(ask, QUERIES["new_group"])
        restart = await restarted(ask, QUERIES["count"]) if engine == "auto" else None
        spark = await running.session()
        await ask(ON_SPARK)
        with_spark = await three_organisations(ask, QUERIES["new_group"])
        bare = await asyncio.to_thread(bare_session, spark, objects, parts)
        duckdb = in_duckdb(objects, parts)
        results = {name: await compared(ask, bare, duckdb, sql, size) for name, sql in QUERIES.items()}
        together = await clients(ask, size)
        processor = await processor_ms(ask, QUERIES["new_group"], 3 * size)
    asked_before = [result["ratio_to_bare_spark"] for name, result in results.items() if name != "new_group"]
    report(
        "query",
        results["new_group"]["p50_ms"],
        "ms (p50, warm, a GROUP BY never asked before over two small files, through the service's endpoint)",
        ratio_to_bare_spark=results["new_group"]["ratio_to_bare_spark"],
        ratio_asked_before=round(statistics.geometric_mean(asked_before), 2),
        queries=results,
        clients=together,
        processor_ms=processor,
        aims=aims(
            results["new_group"],
            together,
            first_ms=first,
            restart_ms=restart,
            memory_mb=memory["all"],
            with_spark_mb=with_spark["all"],
        ),
        first_ms=first,
        restart_ms=restart,
        memory_mb=memory,
        memory_with_spark_mb=with_spark,
        gate_ms=gate_ms(QUERIES["group"]),
        settings={"size": size, "rows": ROWS, "files": FILES, "engine": engine},
    )


async def bombed(home: Path, size: int, engine: str, kinds: Sequence[str]) -> None:
    """By turns, so that whatever else the machine does falls on both."""
    objects = DiskObjects(home / "objects")
    parts = made(objects)
    ca = home / "tls" / "ca.pem"
    async with service(home, objects, parts, engine=engine) as running:
        await running.session()  # bombs that Sail has no memory for run there, and its start is no bomb
        for user in ("bench", BOMBER):
            await running.ask(QUERIES["count"], user)
        gc.freeze()  # as a process does that is ready
        gc.set_threshold(*COLLECT_AFTER)
        quiet, beside, bombs = list[float](), list[float](), Counter[str]()
        waited = {id(quiet): 0.0, id(beside): 0.0}
        for turn in range(TURNS):
            times = beside if turn % 2 else quiet
            async with AsyncExitStack() as thrown:
                if times is beside:
                    bombs = await thrown.enter_async_context(throwing(running.http, ca, bombs, kinds))
                before = _waited()
                for number in range(5 * size):
                    text = QUERIES["new_group"].replace("{turn}", str(-1 - number - turn * 5 * size))
                    began = time.perf_counter()
                    await running.ask(text)
                    times.append(time.perf_counter() - began)
                waited[id(times)] += _waited() - before
    slowest, slowest_alone = (sorted(times)[int(0.95 * len(times))] for times in (beside, quiet))
    report(
        "query_beside_bombs",
        milliseconds(slowest),
        "ms (p95 of one organisation's queries, each a new text, while another sends bombs)",
        alone_p95_ms=milliseconds(slowest_alone),
        ratio_to_alone=round(slowest / slowest_alone, 2),
        p50_ms=milliseconds(statistics.median(beside)),
        alone_p50_ms=milliseconds(statistics.median(quiet)),
        waited_ms=milliseconds(waited[id(beside)] / len(beside)),
        alone_waited_ms=milliseconds(waited[id(quiet)] / len(quiet)),
        bombs=dict(bombs),
        settings={"size": size, "engine": engine, "kinds": kinds},
    )


def _waited() -> float:
    """Seconds for which this thread, on which the service answers, waited for a core: whoever takes the cores, it
    is the first cause of a slow answer on a busy machine.
    """
    return thread_times(os.getpid())[os.getpid()].waited


async def compared(ask: Ask, bare: Any, duckdb: Any, sql: str, size: int) -> dict[str, float]:
    """One of each in turn; a text with a `{turn}` in it is another each time."""
    times: dict[str, list[float]] = {"ours": [], "spark": [], "duckdb": []}
    for turn in range(size + 5):
        text = sql.replace("{turn}", str(turn))
        ways: dict[str, Awaitable[None]] = {"ours": ask(text), "spark": asyncio.to_thread(_collected, bare, text)}
        if duckdb is not None:
            ways["duckdb"] = asyncio.to_thread(_fetched, duckdb, text)
        for name, way in ways.items():
            began = time.perf_counter()
            await way
            times[name] += [time.perf_counter() - began] if turn >= 5 else []
    ours, spark = statistics.median(times["ours"]), statistics.median(times["spark"])
    found = {
        "p50_ms": milliseconds(ours),
        "p95_ms": milliseconds(sorted(times["ours"])[int(0.95 * len(times["ours"]))]),
        "bare_p50_ms": milliseconds(spark),
        "ratio_to_bare_spark": round(ours / spark, 2),
    }
    if duckdb is not None:
        found["duckdb_p50_ms"] = milliseconds(statistics.median(times["duckdb"]))
    return found


def _collected(bare: Any, sql: str) -> None:
    bare.sql(sql).collect()


def _fetched(duckdb: Any, sql: str) -> None:
    duckdb.execute(sql).fetchall()


async def clients(ask: Ask, size: int) -> dict[str, float]:
    """Each sends one query after the other; one that fails ends the benchmark."""

    async def one(client: int) -> None:
        for turn in range(max(3, size // 4)):
            await ask(QUERIES["new_group"].replace("{turn}", str(-1 - turn * CLIENTS - client)))

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(CLIENTS)))
    seconds = time.perf_counter() - began
    return {"clients": CLIENTS, "errors": 0, "per_second": round(CLIENTS * max(3, size // 4) / seconds, 1)}


def in_duckdb(objects: DiskObjects, parts: list[PartitionFiles]) -> Any:
    """Return a connection with the view; None where DuckDB is not installed."""
    try:
        duckdb = import_module("duckdb")
    except ImportError:
        return None
    connection = duckdb.connect()
    paths = [
        str(objects.root / "trace" / FOLDER.object(file["name"]).key) for partition in parts for file in partition.files
    ]
    connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet({paths!r})")  # noqa: S608 - our own paths
    return connection


def made(objects: DiskObjects) -> list[PartitionFiles]:
    parts = []
    for part in range(FILES):
        numbers = list(range(part * ROWS // FILES, (part + 1) * ROWS // FILES))
        table = pa.table({"number": numbers, "kind": [n % 7 for n in numbers], "text": [f"event {n}" for n in numbers]})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        name, body = f"part{part}.parquet", sink.getvalue().to_pybytes()
        objects.put(FOLDER.object(name), body)
        file = {"name": name, "rows": len(numbers), "bytes": len(body)}
        parts.append(PartitionFiles(partition_key=str(part), location=str(FOLDER), files=[file], commit=1))
    return parts


def bare_session(spark: Any, objects: DiskObjects, parts: list[PartitionFiles]) -> Any:
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    paths = [objects.for_spark(FOLDER.object(file["name"])) for partition in parts for file in partition.files]
    session.read.schema("number bigint, kind bigint, text string").parquet(*paths).createOrReplaceTempView("events")
    return session


class KnownDispatcher(DispatcherClient):
    """Answers at once: what is measured is the Query service."""

    def __init__(self, parts: list[PartitionFiles], columns: Columns) -> None:
        self._parts = parts
        self._columns = columns

    async def service_of(self, token_hash: bytes) -> str:
        del token_hash
        return "gateway"

    async def relations(self, request: RelationsRequest, user: ServiceUser | None = None) -> RelationsAnswer:
        columns: list[Mapping[str, Any]] = [{"name": name, "type": kind} for name, kind in self._columns]
        known = any(item.dataset_version == VERSION for item in request.known)
        cold = (
            ColdFilesAnswer(dataset_version=VERSION, commit=1)
            if known
            else ColdFilesAnswer(dataset_version=VERSION, commit=1, columns=columns, partitions=self._parts)
        )
        found = RelationAnswer(
            name="events", dataset_uuid=DATASET, dataset_version=VERSION, commit=1, hot=False, cold=cold
        )
        return RelationsAnswer(org_id=uuid5(DATASET, str(user)), user_id=uuid5(VERSION, str(user)), relations=[found])

    async def take_comparison(self) -> ComparisonTaken:
        """No release is to be compared, as long as the service runs."""
        await asyncio.Event().wait()
        raise AssertionError

    async def audit(self, rows: Any) -> AuditAnswer:
        received: list[AuditRow] = list(rows)
        return AuditAnswer(stored=len(received))


class NoPool:
    """The data database is not asked: there are no hot tables here."""


@dataclass(frozen=True)
class Running:
    """The service, and calls to it by users, each of an organisation of its own."""

    spark: QuerySpark
    owner: SparkOwner
    http: httpx.AsyncClient

    async def session(self) -> Any:
        """Its Spark, which is started now if no query did."""
        await self.spark.sessions()
        return self.owner.session()

    async def send(self, sql: str, user: str = "bench", seconds: float | None = None) -> httpx.Response:
        limit = {} if seconds is None else {"timeout_seconds": seconds}
        return await self.http.post("/v1/query", json={"sql": sql, **limit}, headers={"X-Trace-User": user})

    async def ask(self, sql: str, user: str = "bench") -> None:
        answer = await self.send(sql, user)
        if not answer.is_success:
            raise SystemExit(answer.text)


@asynccontextmanager
async def service(
    home: Path, objects: DiskObjects, parts: list[PartitionFiles], columns: Columns = COLUMNS, *, engine: str = "spark"
) -> AsyncIterator[Running]:
    settings, context = _settings(home, engine)
    owner = SparkOwner(query_options(settings), settings.home / "cache")
    spark = QuerySpark(owner, settings.query.sessions)
    headers = as_service("gateway")
    pool: Any = NoPool()
    try:
        if engine == "spark":
            await spark.sessions()
        async with (
            serving(settings, pool, KnownDispatcher(parts, columns), spark, objects, metrics=Metrics()) as listeners,
            AsyncClient(base_url=listeners["query_internal"], headers=headers, verify=context, timeout=120) as http,
        ):
            yield Running(spark, owner, http)
    finally:
        await spark.close()


def _settings(home: Path, engine: str) -> tuple[Settings, ssl.SSLContext]:
    files = ensure_certificates(home / "tls", datetime.now(UTC))
    base = load_settings({}, home=home / "home")
    settings = base.model_copy(
        update={
            "tls": TlsSettings(ca=files.ca, cert=files.cert, key=files.key),
            "data": DataSettings(query_dsn=SecretStr("postgresql://nobody@127.0.0.1/none")),
            "query": base.query.model_copy(update={"engine": engine}),
        }
    )
    return settings, ssl.create_default_context(cafile=files.ca)


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)


if __name__ == "__main__":
    main()
