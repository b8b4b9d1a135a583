"""What only a worker knows, its database's password, keys of nodes and secrets of jobs, is never exposed.

`trace worker` as a user starts it: tasks that succeed, that a node refuses with our own words, whose code raises
its secrets in an error, and that lose the database. About 30 s on two free cores.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import asyncpg
import psycopg
import pyarrow.parquet as pq
import pytest
from aiohttp import web
from psycopg.conninfo import conninfo_to_dict

from tests.support.chain.devchain import Devchain, running
from tests.support.dispatcher.control import an_org
from tests.support.postgres import RunningServer
from tests.support.spark.cluster import trace_worker
from tests.support.spark.functions import proof
from tests.support.systems.chain import ChainSystem
from tests.support.systems.operators import OperatorSystem
from tests.support.systems.walk import walking
from tracelake.dispatcher.identity.secrets import set_secret
from tracelake.domain.access.seal import Seal, new_key, read_keys
from tracelake.operators.api.context import Resources
from tracelake.store.migrate import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

PASSWORD = "moonlit/harbour 7%"
KEY_IN_PATH, KEY_IN_QUERY, KEY_OF_ACCOUNT = "pathkey-5f3a9c", "querykey-77be01", "accountkey-c04d2e"
KEY_OF_GOOD_NODE = "goodkey-a81f6b"
SECRET_OF_JOB = "jobkey-'39ce'-70"
SECRETS = (
    *(PASSWORD, quote(PASSWORD, safe="")),
    *(KEY_IN_PATH, KEY_IN_QUERY, KEY_OF_ACCOUNT, KEY_OF_GOOD_NODE, "39ce"),
    base64.b64encode(f"trace:{KEY_OF_ACCOUNT}".encode()).decode(),
)
DAG = """
name: d
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: follow
    operator: block_follower
    source: {kind: always_on}
    config: {rpc_pool: good, tables: [blocks]}
    outputs: [blocks]
    heartbeat_interval_seconds: 1s
  - name: ingest
    operator: cryo_ingest
    config: {rpc_pool: good, tables: [blocks]}
    inputs: [{from: {job: go}}]
  - name: refused
    operator: cryo_ingest
    config: {rpc_pool: bad, tables: [blocks]}
    inputs: [{from: {job: go}}]
  - name: leaks
    operator: python
    config: {function: "tests.support.spark.functions:leaks_secrets"}
    inputs: [{from: {job: go}}]
    secrets: [JOB_KEY]
  - name: compact
    operator: parquet_compact
    config: {tables: [blocks]}
    inputs: [{from: {job: go}}, {from: {job: follow, output: blocks}, trigger: false}]
"""
ENDED = """
SELECT j.name, t.status::text, t.error_message FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.activation <> 'source' AND j.name <> 'go' ORDER BY t.id
"""


@pytest.fixture
def devchain() -> Iterator[Devchain]:
    with running(blocks=20) as chain:
        yield chain


@pytest.fixture
def data_role(postgres: RunningServer) -> Iterator[str]:
    """A role of the database that the test knows the password of."""
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE data_role SUPERUSER LOGIN PASSWORD '{PASSWORD}'".encode())
        yield "data_role"
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'data_role'")
        connection.execute("DROP ROLE data_role")


@asynccontextmanager
async def a_node_that_echoes() -> AsyncIterator[str]:
    """Refuses every request, and repeats the request in the refusal."""

    async def refuse(request: web.Request) -> web.Response:
        error = {"code": -32000, "message": f"no such key: {request.headers['Authorization']} for {request.url}"}
        return web.json_response({"jsonrpc": "2.0", "id": None, "error": error}, status=401)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        where = f"127.0.0.1:{runner.addresses[0][1]}"
        yield f"http://trace:{KEY_OF_ACCOUNT}@{where}/v2/{KEY_IN_PATH}?apikey={KEY_IN_QUERY}"
    finally:
        await runner.cleanup()


async def test_no_password_and_no_key_is_in_a_log_a_database_or_a_file_of_spark(
    postgres: RunningServer, data_role: str, devchain: Devchain, clone: Callable[[Database], str], tmp_path: Path
) -> None:
    state_db, queue_db, data_db = clone("state"), clone("queue"), clone("data")
    database = str(conninfo_to_dict(data_db)["dbname"])
    dsns, log = (queue_db, postgres.cluster.dsn(database, data_role, PASSWORD)), tmp_path / "worker.log"
    async with walking(state_db, queue_db, tmp_path) as walk, a_node_that_echoes() as bad:
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)  # Spark is in the worker
        settings = {
            "TRACE_SPARK__MASTER": "local[2]",
            "TRACE_SPARK__DRIVER_MEMORY": "512m",
            "TRACE_RPC_POOLS__GOOD__ENDPOINTS": devchain.node(KEY_OF_GOOD_NODE),
            "TRACE_RPC_POOLS__GOOD__CHAIN_ID": str(devchain.chain_id),
            "TRACE_RPC_POOLS__BAD__ENDPOINTS": bad,
            "TRACE_SECRETS__JOB_KEY": SECRET_OF_JOB,
        }
        await system.deploy(DAG)
        chain = ChainSystem(walk, data_db, None, devchain)
        async with trace_worker(walk, tmp_path, dsns, settings, log=log):
            await chain.until_followed(await chain.version("d", "follow"))
            await system.trigger("d", "go", start=0, end=4)
            await chain.settled()
            first = await ended(system)
            await the_password_is_another(postgres, data_role)
            await system.trigger("d", "go", start=5, end=9)
            await system.until("SELECT count(*) = 8 FROM tasks t WHERE status IN ('Completed', 'Failed')")
            files = [path for path in (tmp_path / "worker").rglob("*") if path.is_file()]
            texts = {str(path): path.read_bytes() for path in files}
        said = await ended(system)
        texts |= {str(log): log.read_bytes(), **await tables(state_db), **await tables(queue_db)}
    assert {job: status for job, status, _ in first} == {
        "compact": "Completed",
        "ingest": "Completed",
        "refused": "Failed",
        "leaks": "Failed",
    }, (first, log.read_text())
    assert ("compact", "Failed") in [(job, status) for job, status, _ in said[4:]], said
    assert "no such key" in next(error for job, _, error in said if job == "refused"), (
        "the node's own words are reported"
    )
    assert "cannot log in with {'JOB_KEY': " in next(error for job, _, error in said if job == "leaks")
    assert any(str(tmp_path / "worker" / "work" / "spark") in name for name in texts)
    found = {(name, secret) for name, text in texts.items() for secret in SECRETS if secret.encode() in text}
    assert found == set()


STORED = """
name: d
defaults: {runtime: ecs_platform, max_attempts: 1}
jobs:
  - {name: go, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: leaks
    operator: python
    config: {function: "tests.support.spark.functions:leaks_secrets"}
    inputs: [{from: {job: go}}]
    secrets: [API_KEY]
  - name: proves
    operator: python
    config: {function: "tests.support.spark.functions:proves_secrets"}
    inputs: [{from: {job: go}}]
    secrets: [API_KEY]
"""


async def test_a_worker_gets_the_secret_that_the_organisation_of_its_job_has_stored_and_shows_it_nowhere(
    clone: Callable[[Database], str], tmp_path: Path
) -> None:
    state_db, queue_db, data_db = clone("state"), clone("queue"), clone("data")
    log, seal = tmp_path / "worker.log", Seal(read_keys(new_key()))
    settings = {"TRACE_SPARK__MASTER": "local[2]", "TRACE_SPARK__DRIVER_MEMORY": "512m"}
    async with walking(state_db, queue_db, tmp_path, seal=seal) as walk:
        system = OperatorSystem(walk, cast("SparkSession", None), Resources(), tmp_path)
        values = {walk.org: "stored-by-acme-5f3a9c", await an_org(walk.control.pool, "rival"): "stored-by-rival-77be01"}
        for org, value in values.items():
            await system.deploy(STORED, org)
            await set_secret(walk.control.pool, seal, org.as_user, "job", "api_key", value=value)
        async with trace_worker(walk, tmp_path, (queue_db, data_db), settings, log=log):
            for org in values:
                await system.trigger("d", "go", org=org, start=0, end=4)
            await system.until("SELECT count(*) = 4 FROM tasks WHERE status IN ('Completed', 'Failed') AND attempt > 0")
        said = await ended(system)
    assert sorted((job, status) for job, status, _ in said) == [("leaks", "Failed")] * 2 + [("proves", "Completed")] * 2
    assert all("cannot log in with {'API_KEY': '***'}" in error for job, _, error in said if job == "leaks"), said
    made = [pq.read_table(path).to_pylist() for path in (tmp_path / "objects").rglob("*.parquet")]
    assert sorted(row["proofs"] for rows in made for row in rows) == sorted(
        f"API_KEY:{proof(value)}" for value in values.values()
    )
    files = [path for path in (tmp_path / "worker").rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() for path in [log, *files]} | await tables(state_db) | await tables(queue_db)
    found = {name for name, text in texts.items() for value in values.values() if value.encode() in text}
    assert found == set()


async def ended(system: OperatorSystem) -> list[tuple[str, str, str]]:
    return [tuple(row) for row in await system.fetch(ENDED)]


async def the_password_is_another(postgres: RunningServer, role: str) -> None:
    with psycopg.connect(postgres.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {role} PASSWORD 'sunlit'".encode())
        connection.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = %s", (role,))


async def tables(dsn: str) -> dict[str, bytes]:
    """Every row of a database, as text, by the table."""
    connection = await asyncpg.connect(dsn)
    try:
        names = await connection.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        rows = {
            item["name"]: await connection.fetch(f"SELECT t::text AS row FROM {item['name']} t")  # noqa: S608
            for item in names
        }
        return {name: "\n".join(row["row"] for row in found).encode() for name, found in rows.items()}
    finally:
        await connection.close()
