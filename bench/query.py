"""Queries through the Query service: `python -m bench.query [--size N] [--engine auto]`.

A small dataset of Parquet files; the same query, warm, sent to the service (its api, with TLS and a look-up at a
Dispatcher that answers at once) and of a bare Spark session that has the view already. Alternating, so that whatever
else the machine does falls on both. The service keeps the plan of a query that is repeated (never its rows), so
the headline and its ratio are of a text that nobody asked before, `new_group`, where both sides plan; so are those of
the eight clients at once and of DuckDB. `ratio_asked_before` is of the others. Then the gate by itself. All on the
event loop that `trace query` has.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from pydantic import SecretStr

from bench.report import report
from tracelake.adapters.objects_disk import DiskObjects
from tracelake.domain.object_names import Folder
from tracelake.domain.sql.gate import _check, _parsed, check_sql
from tracelake.lite.certificates import ensure_certificates
from tracelake.query.process import serving
from tracelake.query.spark import QuerySpark, query_options
from tracelake.runtime.http_client import AsyncClient
from tracelake.runtime.metrics import Metrics
from tracelake.settings import DataSettings, IdentitySettings, Settings, TlsSettings, load_settings
from tracelake.spark.owner import SparkOwner
from tracelake.wire.client import DispatcherClient
from tracelake.wire.output_messages import PartitionFiles
from tracelake.wire.query_messages import (
    AuditAnswer,
    AuditRow,
    ColdFilesAnswer,
    Relation,
    RelationsAnswer,
    RelationsRequest,
)

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
Columns = Sequence[tuple[str, str]]
COLUMNS: Final[Columns] = (("number", "bigint"), ("kind", "bigint"), ("text", "string"))
ORG, DATASET, VERSION = uuid4(), uuid4(), uuid4()
FOLDER: Final = Folder.parse(f"s3://trace/datasets/{DATASET}/{VERSION}/")
TOKEN: Final = "a worker token of the benchmark"  # noqa: S105


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=30, help="how often each query is sent to each")
    parser.add_argument("--engine", choices=("spark", "auto"), default="spark", help="the service's `query.engine`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-bench-") as folder:
        uvloop.run(measure(Path(folder), given.size, given.engine))


async def measure(home: Path, size: int, engine: str) -> None:
    objects = DiskObjects(home / "objects")
    parts = made(objects)
    async with service(home, objects, parts, engine=engine) as (spark, ask):
        began = time.perf_counter()
        await ask(QUERIES["count"])
        first = milliseconds(time.perf_counter() - began)
        bare = await asyncio.to_thread(bare_session, spark, objects, parts)
        results = {name: await compared(ask, bare, sql, size) for name, sql in QUERIES.items()}
        together = await clients(ask, size)
    asked_before = [result["ratio_to_bare_spark"] for name, result in results.items() if name != "new_group"]
    report(
        "query",
        results["new_group"]["p50_ms"],
        "ms (p50, warm, a GROUP BY never asked before over two small files, through the service's endpoint)",
        ratio_to_bare_spark=results["new_group"]["ratio_to_bare_spark"],
        ratio_asked_before=round(statistics.geometric_mean(asked_before), 2),
        queries=results,
        ratio_to_duckdb=in_duckdb(objects, parts, results["new_group"]["p50_ms"], size),
        clients=together,
        first_ms=first,
        gate_ms=gate(),
        settings={"size": size, "rows": ROWS, "files": FILES, "engine": engine},
    )


async def compared(ask: Callable[[str], Awaitable[None]], bare: Any, sql: str, size: int) -> dict[str, float]:
    """One of each in turn; a text with a `{turn}` in it is another each time."""
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(size + 5):
        text = sql.replace("{turn}", str(turn))
        began = time.perf_counter()
        await ask(text)
        between = time.perf_counter()
        await asyncio.to_thread(_collected, bare, text)
        if turn >= 5:
            ours.append(between - began)
            theirs.append(time.perf_counter() - between)
    return {
        "p50_ms": milliseconds(statistics.median(ours)),
        "p95_ms": milliseconds(sorted(ours)[int(0.95 * len(ours))]),
        "bare_p50_ms": milliseconds(statistics.median(theirs)),
        "ratio_to_bare_spark": round(statistics.median(ours) / statistics.median(theirs), 2),
    }


def _collected(bare: Any, sql: str) -> None:
    bare.sql(sql).collect()


async def clients(ask: Callable[[str], Awaitable[None]], size: int) -> dict[str, float]:
    """Each sends one query after the other; one that fails ends the benchmark."""

    async def one(client: int) -> None:
        for turn in range(max(3, size // 4)):
            await ask(QUERIES["new_group"].replace("{turn}", str(-1 - turn * CLIENTS - client)))

    began = time.perf_counter()
    await asyncio.gather(*(one(client) for client in range(CLIENTS)))
    seconds = time.perf_counter() - began
    return {"clients": CLIENTS, "errors": 0, "per_second": round(CLIENTS * max(3, size // 4) / seconds, 1)}


def gate() -> float:
    """Of a query that was never seen before."""
    times = []
    for number in range(50):
        _check.cache_clear()
        _parsed.cache_clear()
        began = time.perf_counter()
        check_sql(f"{QUERIES['group']} LIMIT {number}", {"events"}, deterministic=False)
        times.append(time.perf_counter() - began)
    return milliseconds(statistics.median(times))


def in_duckdb(objects: DiskObjects, parts: list[PartitionFiles], ours: float, size: int) -> float | None:
    try:
        duckdb = import_module("duckdb")
    except ImportError:
        return None
    connection = duckdb.connect()
    paths = [
        str(objects.root / "trace" / FOLDER.object(file["name"]).key) for partition in parts for file in partition.files
    ]
    connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet({paths!r})")  # noqa: S608 - our own paths
    times = []
    for turn in range(size):
        began = time.perf_counter()
        connection.execute(QUERIES["new_group"].replace("{turn}", str(turn))).fetchall()
        times.append(time.perf_counter() - began)
    return round(ours / milliseconds(statistics.median(times)), 1)


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
        self._user: UUID = uuid4()

    async def relations(self, request: RelationsRequest, user: str | None = None) -> RelationsAnswer:
        del user
        columns: list[Mapping[str, Any]] = [{"name": name, "type": kind} for name, kind in self._columns]
        known = any(item.dataset_version == VERSION for item in request.known)
        cold = (
            ColdFilesAnswer(dataset_version=VERSION, commit=1)
            if known
            else ColdFilesAnswer(dataset_version=VERSION, commit=1, columns=columns, partitions=self._parts)
        )
        found = Relation(name="events", dataset_uuid=DATASET, dataset_version=VERSION, commit=1, hot=False, cold=cold)
        return RelationsAnswer(org_id=ORG, user_id=self._user, relations=[found])

    async def audit(self, rows: Any) -> AuditAnswer:
        received: list[AuditRow] = list(rows)
        return AuditAnswer(stored=len(received))


class NoPool:
    """The data database is not asked: there are no hot tables here."""


@asynccontextmanager
async def service(
    home: Path, objects: DiskObjects, parts: list[PartitionFiles], columns: Columns = COLUMNS, *, engine: str = "spark"
) -> AsyncIterator[tuple[Any, Callable[[str], Awaitable[None]]]]:
    settings, context = _settings(home, engine)
    owner = SparkOwner(query_options(settings), settings.home / "cache")
    spark = QuerySpark(owner, settings.query.sessions)
    headers = {"X-Trace-Worker-Token": TOKEN, "X-Trace-User": "bench"}
    pool: Any = NoPool()
    try:
        await spark.sessions()
        async with (
            serving(settings, pool, KnownDispatcher(parts, columns), spark, objects, metrics=Metrics()) as listeners,
            AsyncClient(base_url=listeners["query_internal"], headers=headers, verify=context, timeout=120) as http,
        ):

            async def ask(sql: str) -> None:
                answer = await http.post("/v1/query", json={"sql": sql})
                if not answer.is_success:
                    raise SystemExit(answer.text)

            yield owner.session(), ask
    finally:
        await spark.close()


def _settings(home: Path, engine: str) -> tuple[Settings, ssl.SSLContext]:
    files = ensure_certificates(home / "tls", datetime.now(UTC))
    base = load_settings({}, home=home / "home")
    settings = base.model_copy(
        update={
            "tls": TlsSettings(ca=files.ca, cert=files.cert, key=files.key),
            "identity": IdentitySettings(worker_token=SecretStr(TOKEN)),
            "data": DataSettings(query_dsn=SecretStr("postgresql://nobody@127.0.0.1/none")),
            "query": base.query.model_copy(update={"engine": engine}),
        }
    )
    return settings, ssl.create_default_context(cafile=files.ca)


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)


if __name__ == "__main__":
    main()
