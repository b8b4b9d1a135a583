"""The Query service as a process: callers get their answers though its Spark is lost, and kill -9 leaves nothing. 60 s.

One service for the tests that take its Spark away; a test that ends a service has one of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from tests.support.identity.service_tokens import as_service
from tests.support.operators import registered
from tests.support.query.process import COUNT, a_service, answered, family, gauge, members, running_queries, sails
from tests.support.spark.hot_tables import chain, hot_table, rows_of
from tests.support.systems.query import ROWS, QuerySystem
from tests.support.waiting import SECONDS, until
from tracelake.data.hot.tables import ensure
from tracelake.data.hot.writer import rewrite
from tracelake.domain.access.object_names import Folder
from tracelake.domain.dag.catalog import OperatorSpec, checked_by
from tracelake.domain.dag.model import Storage
from tracelake.operators.api.outcome import OperatorConfig
from tracelake.sandbox.process import runs
from tracelake.settings import QuerySettings

pytestmark = pytest.mark.anyio
LIMIT = 3
CORES = 2
"""Cores that one query may use."""
JAVA_ITSELF = 6
BEGUN = 2
"""More seconds of work than planning takes."""
SLOW = "SELECT sum(a.value + b.value) AS n FROM " + ", ".join(f"orders {name}" for name in "abcde")  # noqa: S608 - a query of a test
"""3 million rows in nested loops, without generated code."""
TOTAL = sum(range(0, 10 * ROWS, 10)) * 2 * ROWS**4
TEN = "stack(10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)"
LOOPS = "SELECT sum(t0.value + t9.value) AS n FROM " + ", ".join(f"orders t{n}" for n in range(12))  # noqa: S608
FOUR = "SELECT a.value FROM orders a, orders b, orders c, orders d"
GENERATED = f"SELECT count(*) AS n FROM ({FOUR}) o " + " ".join(f"LATERAL VIEW {TEN} g{n} AS c{n}" for n in range(6))  # noqa: S608

TOTAL_VALUE = sum(range(0, 10 * ROWS, 10))
HOT_ROWS = 20
LAST = "SELECT count(*) AS n FROM live"
FIRES = """
name: fires
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: burn, operator: fire, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
publish:
  live: {job: burn}
"""
MANY = "SELECT a.value, b.value AS v FROM " + ", ".join(f"orders {name}" for name in "abcdefg")  # noqa: S608
BOMB = "SELECT length(listagg(repeat('x', 4000))) AS n FROM " + ", ".join(f"orders {name}" for name in "abcdef")  # noqa: S608
"""A list of 64 million texts: the number of collected rows is not known before they are read."""

Service = tuple[subprocess.Popen[bytes], httpx.AsyncClient]


def patient(system: QuerySystem, home: Path) -> AbstractAsyncContextManager[Service]:
    """With time limits that no query reaches on a busy machine, unless it gives its own."""
    usual = QuerySettings().stuck_seconds
    return a_service(system, home, usual, timeout_seconds=SECONDS, wait_seconds=SECONDS)


@pytest.fixture(scope="module")
async def service(system: QuerySystem, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with patient(system, tmp_path_factory.mktemp("service") / "home") as running:
        yield running


@pytest.mark.long
async def test_queries_whose_spark_was_killed_are_run_once_more_one_at_a_time(service: Service) -> None:
    process, listener = service
    await answered(listener, COUNT)
    requests = [asyncio.create_task(listener.post("/v1/query", json={"sql": SLOW})) for _ in range(2)]
    first = await java_of(process)
    await until_running(listener, 2)
    os.kill(first, signal.SIGKILL)
    await java_of(process, other_than=first)
    await until_running(listener, 1)
    os.kill(await java_of(process, other_than=first), signal.SIGKILL)
    answers = sorted([await request for request in requests], key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [200, 503], [answer.text for answer in answers]
    assert answers[0].json()["rows"] == [[TOTAL]], "it died with the other, and not with it again"
    refusal = answers[1].json()["error"]
    assert (refusal["code"], refusal["retryable"]) == ("spark_lost", True), "twice under it: no third time"


@pytest.mark.parametrize(("sql", "hangs_up"), [(LOOPS, False), (GENERATED, True)], ids=["loops", "generators"])
async def test_a_query_that_no_interrupt_ends_uses_little_more_than_its_time_limit(
    service: Service, sql: str, hangs_up: bool
) -> None:
    process, listener = service
    await answered(listener, COUNT)
    java, ended = await java_of(process), await counted(listener)
    before = processor_seconds(java) or 0
    spent, allowed, limit = before, JAVA_ITSELF, LIMIT
    async with asyncio.timeout(SECONDS):
        while processor_seconds(java) is not None:
            began = spent
            request = asyncio.create_task(listener.post("/v1/query", json={"sql": sql, "timeout_seconds": limit}))
            while (now := processor_seconds(java)) is not None and (
                not request.done() or await running_queries(listener)
            ):
                spent = now
                if hangs_up and spent - began > BEGUN:
                    request.cancel()
                await asyncio.sleep(0.05)
            await asyncio.wait({request})
            if not request.cancelled():
                assert error_of(request.result()) == (504, "query_timeout", True)
            allowed += CORES * (limit + 2)
            limit *= 2  # the time was over before its tasks had begun: on a busy machine planning takes longer
    # Processor time, not wall time, which depends on the load of the machine.
    assert spent - before < allowed
    assert await answered(listener, COUNT) == [[ROWS]]
    assert await counted(listener) > ended


async def test_a_kill_leaves_no_process_connection_or_part_of_an_export_and_the_next_service_goes_on(
    system: QuerySystem, tmp_path: Path
) -> None:
    home, audited, (_, before) = tmp_path / "home", len(await system.audit()), exports(system)
    await a_hot_table(system)
    async with patient(system, home) as (process, listener):
        done = await listener.post("/v1/query", json={"sql": COUNT, "export": {}})
        assert done.is_success, done.text
        export = asyncio.create_task(listener.post("/v1/query", json={"sql": MANY, "export": {}}))
        await until(lambda: members(process.pid, "pyspark.worker"), "Python workers run")
        hot = asyncio.create_task(listener.post("/v1/query", json={"sql": LOOPS.replace("orders", "live")}))
        await until(lambda: holders(system), "connections are open")
        process.kill()
        for item in (export, hot):
            with pytest.raises(httpx.TransportError):
                await item
    await until(lambda: not family(process.pid), "its processes have ended")
    found, whole = exports(system)
    assert len(whole - before) == 1, "the one that was done before the kill"
    assert found == whole, "of the one that was killed nothing is visible"
    await until(lambda: not holders(system), "its connections are closed")
    async with a_service(system, home, driver_memory="512m") as (_, listener):
        assert await answered(listener, LAST) == [[HOT_ROWS]], "the next one answers, the hot table too"
        # The audit has the queries from before the kill.
        await system.operators.until("SELECT count(*) >= $1 FROM query_audit", audited + 1)
        bomb = await listener.post("/v1/query", json={"sql": BOMB})
        assert bomb.status_code in {422, 503, 504}, bomb.text
        assert (await listener.get("/readyz")).is_success, "whatever became of its Spark"


async def test_with_sail_the_process_answers_without_spark_which_has_a_lower_priority_and_reads_hot_rows(
    system: QuerySystem, tmp_path: Path
) -> None:
    await a_hot_table(system)
    async with a_service(system, tmp_path / "home", engine="auto") as (process, listener):
        answers = [(await listener.post("/v1/query", json={"sql": sql})).json() for sql in (COUNT, LAST)]
        assert [(answer["rows"], answer["engine"]) for answer in answers] == [
            ([[ROWS]], "sail"),
            ([[HOT_ROWS]], "sail"),
        ]
        assert not members(process.pid, "java")
        killed = sails(process.pid)
        assert killed
        for sail in killed:
            os.kill(sail, signal.SIGKILL)
        again = (await listener.post("/v1/query", json={"sql": COUNT})).json()
        assert (again["rows"], again["engine"]) == ([[ROWS]], "sail"), "of the next one"
        assert set(sails(process.pid)).isdisjoint(killed)
        left = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert await answered(listener, "SELECT CAST(sum(double(value)) AS BIGINT) AS n FROM orders") == [[TOTAL_VALUE]]
        java = await java_of(process)
        priorities = {os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in threads_of(java)}
        lower = QuerySettings().spark_nice
        assert priorities == {os.getpriority(os.PRIO_PROCESS, process.pid) + lower}, "no bomb takes Sail's cores"
        process.terminate()
        await asyncio.to_thread(process.wait)
        assert not family(process.pid)
        assert not [pid for pid in left if runs(pid)], "of no sandbox either, each of which is a session of its own"
    assert not (tmp_path / "home" / "work" / "sail").exists()


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def exports(system: QuerySystem) -> tuple[set[str], set[str]]:
    """Exports with any file, and complete ones."""
    folder = Folder.parse(f"s3://trace/exports/{system.operators.walk.org.id}/")
    names = [item.name for item in system.operators.walk.control.objects.objects(folder)]
    whole = [item for item in names if item.name == "_SUCCESS"]
    return {str(item).split("/")[5] for item in names}, {str(item).split("/")[5] for item in whole}


def holders(system: QuerySystem) -> list[int]:
    """Sessions in a transaction with data Postgres."""
    assert system.settings.data.query_dsn is not None
    with psycopg.connect(system.settings.data.query_dsn.get_secret_value(), autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND xact_start IS NOT NULL"
        ).fetchall()
    return [pid for (pid,) in found]


async def a_hot_table(system: QuerySystem) -> None:
    """A DAG whose dataset `live` is a hot table, with some rows."""
    fire = OperatorSpec(checked_by(OperatorConfig), frozenset({"ecs_platform"}), storages=(Storage.POSTGRES,))
    with registered(fire=fire):
        await system.operators.deploy(FIRES)
    row = await system.pool.fetchrow(
        "SELECT d.id, v.id AS version FROM datasets d JOIN dataset_versions v ON v.dataset_uuid = d.id"
        " WHERE d.name = 'live' AND d.org_id = $1 AND d.storage ->> 'kind' = 'postgres'",
        system.operators.walk.org.id,
    )
    table = replace(
        hot_table(), org_id=system.operators.walk.org.id, dataset_uuid=row["id"], dataset_version=row["version"]
    )
    assert system.settings.data.query_dsn is not None
    with psycopg.connect(system.settings.data.query_dsn.get_secret_value(), autocommit=True) as connection:
        ensure(connection, table)
        rows = rows_of([(number, 0, number) for number in range(HOT_ROWS)])
        rewrite(connection, {table: rows}, chain(0, HOT_ROWS), replace_from=0)


async def java_of(process: subprocess.Popen[bytes], other_than: int = 0) -> int:
    async with asyncio.timeout(SECONDS):
        while True:
            for java in members(process.pid, "java"):
                if java != other_than:
                    return java
            await asyncio.sleep(0.05)


async def until_running(listener: httpx.AsyncClient, queries: int) -> None:
    """Wait until this many queries with a slot run in Spark, which has prepared sessions."""

    async def running() -> bool:
        return await running_queries(listener) == queries and await gauge(listener, "trace_query_sessions", "fresh") > 0

    await until(running, f"{queries} queries run", every=0.05)


async def counted(listener: httpx.AsyncClient) -> int:
    """How often Spark was ended because of a query."""
    text = (await listener.get("/metrics", headers=as_service("monitor"))).text
    (times,) = re.findall(r"^trace_query_stuck_total (\d+)\.0$", text, re.MULTILINE)
    return int(times)


def processor_seconds(pid: int) -> float | None:
    """None: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def error_of(answer: httpx.Response) -> tuple[int, str, bool]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["retryable"]
