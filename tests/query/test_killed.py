"""The Query service as a process: it survives the loss of its Spark, and kill -9 leaves no process or file behind."""

from __future__ import annotations

import asyncio
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.spark.hot_tables import chain, hot_table, rows_of
from tests.support.systems.query import ROWS, QuerySystem
from tests.support.systems.query_process import COUNT, a_service, answered, family, members
from tests.support.systems.walk import TOKEN
from tests.support.waiting import SECONDS, until
from tracelake.data.hot.tables import ensure
from tracelake.data.hot.writer import rewrite
from tracelake.domain.object_names import Folder

pytestmark = pytest.mark.anyio
HOT_ROWS = 20
LAST = "SELECT count(*) AS n FROM thought"
MANY = "SELECT a.value, b.value AS v FROM " + ", ".join(f"orders {name}" for name in "abcdefg")  # noqa: S608 - a query of a test
BOMB = "SELECT length(listagg(cast(a.value AS string))) AS n FROM " + ", ".join(  # noqa: S608
    f"orders {name}" for name in "abcdef"
)
"""A list of 64 million texts: the number of collected rows is not known before they are read."""
LOOPS = "SELECT count(*) AS n FROM " + ", ".join(f"orders t{n}" for n in range(12))  # noqa: S608
"""A task in a nested loop, which never checks for an interrupt."""


async def test_with_sail_the_process_answers_without_spark_and_reads_hot_rows(
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
        process.terminate()
        await asyncio.to_thread(process.wait)
        assert not family(process.pid)
    assert not (tmp_path / "home" / "work" / "sail").exists()


async def test_the_service_survives_the_loss_of_spark_and_a_kill_leaves_no_processes(
    system: QuerySystem, tmp_path: Path
) -> None:
    audited, (_, before) = len(await system.audit()), exports(system)
    await a_hot_table(system)
    async with a_service(system, tmp_path / "home") as (process, listener):
        assert await answered(listener, COUNT) == [[ROWS]]
        await until_loops_cost_it_its_spark(process, listener)
        assert await answered(listener, COUNT) == [[ROWS]], "Spark is started again, the service goes on"
        done = await listener.post("/v1/query", json={"sql": COUNT, "export": {}})
        assert done.is_success, done.text
        export = asyncio.create_task(listener.post("/v1/query", json={"sql": MANY, "export": {}}))
        await until(lambda: members(process.pid, "pyspark.worker"), "Python workers run")
        hot = asyncio.create_task(listener.post("/v1/query", json={"sql": LOOPS.replace("orders", "thought")}))
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
    async with a_service(system, tmp_path / "home") as (_, listener):
        assert await answered(listener, LAST) == [[HOT_ROWS]], "the next one answers, the hot table too"
        # The audit has the queries from before the kill.
        await system.operators.until("SELECT count(*) >= $1 FROM query_audit", audited + 3)
        bomb = await listener.post("/v1/query", json={"sql": BOMB})
        assert bomb.status_code in {422, 503, 504}, bomb.text
        assert (await listener.get("/readyz")).is_success, "whatever became of its Spark"


def exports(system: QuerySystem) -> tuple[set[str], set[str]]:
    """Exports with any file, and complete ones."""
    folder = Folder.parse(f"s3://trace/exports/{system.operators.walk.org.id}/")
    names = [item.name for item in system.operators.walk.control.objects.objects(folder)]
    whole = [item for item in names if item.name == "_SUCCESS"]
    return {str(item).split("/")[5] for item in names}, {str(item).split("/")[5] for item in whole}


async def until_loops_cost_it_its_spark(process: subprocess.Popen[bytes], listener: httpx.AsyncClient) -> None:
    """Retry if the time limit was over before the task had begun."""
    (java,) = members(process.pid, "java")
    seconds = 5
    async with asyncio.timeout(SECONDS):
        while members(process.pid, "java") == [java]:
            await listener.post("/v1/query", json={"sql": LOOPS, "timeout_seconds": seconds})
            await asyncio.sleep(2)
            seconds *= 2
    # Counted when the JVM has ended; once more if the next one was used too.
    await until(lambda: counted(listener), "it is counted that Spark was ended")


async def counted(listener: httpx.AsyncClient) -> int:
    """How often Spark was ended because of a query."""
    text = (await listener.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})).text
    (times,) = re.findall(r"^trace_query_stuck_total (\d+)\.0$", text, re.MULTILINE)
    return int(times)


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
    """Make dataset `thought`, which no task has written, a hot one with some rows."""
    row = await system.pool.fetchrow(
        'UPDATE datasets d SET storage = \'{"kind": "postgres_hot"}\' FROM dataset_versions v'
        " WHERE v.dataset_uuid = d.id AND d.name = 'thought' AND d.org_id = $1 RETURNING d.id, v.id AS version",
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
