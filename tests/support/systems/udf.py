"""User code from the push of a bundle to rows in Postgres: Dispatcher, runner and sink as they are, one DAG a test.

A DAG has one job that runs the bundle, on either runtime, and writes to a buffered dataset of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
from pydantic import SecretStr

from tests.support import ROOT
from tests.support.aws.lambda_server import LambdaServer
from tests.support.dispatcher.control import deployed_and_active
from tests.support.systems.invokers import lambda_settings
from tests.support.systems.runner import HELPERS, INVOKE_TOKEN, settings_for
from tests.support.systems.sink import SinkSystem
from tests.support.systems.walk import OnDispatcher, walking
from tests.support.udf.bundles import zipped
from tests.support.verbs import announce_bundle, finalize_bundle, upload_bundle
from tests.support.waiting import until
from tracelake.adapters.credentials_mounts import Mounts
from tracelake.adapters.invoker_http import HttpInvoker
from tracelake.adapters.invoker_lambda import LambdaInvoker
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.network_ports import free_ports
from tracelake.runtime.listeners import open_listeners
from tracelake.runtime.tls import client_context
from tracelake.sandbox.bubblewrap import choose_isolation
from tracelake.settings import QueueSettings, Settings
from tracelake.store.identity import find_user
from tracelake.udf.invoke import Functions
from tracelake.udf.object_stores import Stores
from tracelake.udf.process import runner_api, running
from tracelake.wire.user.bundles import BundleRequest
from tracelake.worker.run_udf import SandboxRunner
from tracelake.worker.wrapper import Wrapper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNTIMES = ("lambda", "ecs_udf")
DAG = """
name: {name}
jobs:
  - {{name: ask, operator: noop, runtime: dispatcher, source: {{kind: manual}}}}
  - name: think
    operator: udf
    runtime: {runtime}
    timeout_seconds: {timeout}s
    heartbeat_timeout_seconds: {lease}s
    max_attempts: {attempts}
    max_platform_failures: {attempts}
    retry: {{backoff: 1s, max_backoff: 1s}}
    udf: {{bundle: {name}, sha256: "{sha256}"}}
    inputs: [{{from: {{job: ask}}}}]
    outputs: [{{dataset: {name}_rows}}]
publish:
  {name}_rows:
    storage: postgres
    write_mode: buffered
    columns: {{id: text, amount: bigint}}
    unique_key: [id]
"""
SDK = ROOT / "trace_udf"


@dataclass(frozen=True)
class FunctionSystem(OnDispatcher):
    settings: Settings
    """Of a runner beside this Dispatcher."""
    dsns: Mapping[str, str]

    async def deployed(
        self, code: str, runtime: str, *, attempts: int = 2, seconds: int = 2000, lease: int = 60, dag: str = DAG
    ) -> str:
        """The name of the DAG: a job that runs the code, or another that is written like it."""
        name = f"d{uuid4().hex[:10]}"
        archive = bundle(textwrap.dedent(code) + f"\n# {name}\n")
        sha256 = hashlib.sha256(archive).hexdigest()
        control, org = self.walk.control, self.walk.org
        user = await find_user(control.pool, "test|acme")
        assert user is not None
        request = BundleRequest(name=name, kind="python", sha256=sha256, size_bytes=len(archive))
        made = await announce_bundle(control, user, request)
        await upload_bundle(control, org.id, made.id, archive)
        await finalize_bundle(control, org.id, made.id)
        text = dag.format(name=name, runtime=runtime, sha256=sha256, attempts=attempts, timeout=seconds, lease=lease)
        await deployed_and_active(control, org, text)
        return name

    async def asked(self, name: str) -> UUID:
        """A task of the code."""
        known = await self.walk.control.pool.fetchval("SELECT array_agg(id) FROM tasks") or []
        await self.trigger(name, "ask", cursor=uuid4().int >> 70)
        task: UUID = await self.until(
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id"
            " WHERE j.name = 'think' AND j.dag_name = $1 AND NOT (t.id = ANY($2)) LIMIT 1",
            name,
            known,
        )
        return task

    async def ran(self, name: str) -> dict[str, Any]:
        """A task's row when it is over for good."""
        task = await self.asked(name)
        return await self.over(task)

    async def over(self, task: UUID) -> dict[str, Any]:
        return await self.until_task(
            task, "status IN ('Completed', 'Canceled') OR (status = 'Failed' AND next_retry_at IS NULL)"
        )

    async def until_task(self, task: UUID, condition: str) -> dict[str, Any]:
        sql = f"SELECT *, status::text AS status FROM tasks WHERE id = $1 AND ({condition})"  # noqa: S608
        return dict(await until(lambda: self.walk.control.pool.fetchrow(sql, task), f"{condition} of task {task}"))

    async def lines(self, task: UUID) -> list[tuple[str, str]]:
        """Level and text."""
        sql = "SELECT level::text, text FROM task_logs WHERE task_id = $1 ORDER BY attempt, n"
        return [(row["level"], row["text"]) for row in await self.walk.control.pool.fetch(sql, task)]


@dataclass(frozen=True)
class UdfSystem(FunctionSystem):
    sink: SinkSystem

    async def rows(self, name: str, columns: str = "id, amount") -> list[tuple[Any, ...]]:
        """Of the job's dataset, when nothing is on its way any more, by the first of the columns."""
        await self.sink.settled()
        find = "SELECT dataset_version FROM buffered_datasets WHERE org_id = $1 AND name = $2"
        version = await self.walk.control.pool.fetchval(find, self.walk.org.id, f"{name}_rows")
        sql = f"SELECT {columns} FROM buffered.b_{version.hex} ORDER BY 1"  # noqa: S608
        try:
            return [tuple(row.values()) for row in self.sink.data(sql)]
        except psycopg.errors.UndefinedTable:
            return []


def bundle(code: str) -> bytes:
    """With the author's SDK, as `trace udf build` puts it in."""
    sdk = [(f"trace_udf/{path.name}", path.read_bytes()) for path in sorted(SDK.glob("*.py"))]
    return zipped(("main.py", code.encode()), ("helpers.py", HELPERS.encode()), *sdk)


@asynccontextmanager
async def udf_system(dsns: Mapping[str, str], folder: Path, spark: SparkSession) -> AsyncIterator[UdfSystem]:
    """Without a runner: `serving` is one in this process."""
    task_port, runner_port = free_ports(2)
    invoker = HttpInvoker(f"https://127.0.0.1:{runner_port}", INVOKE_TOKEN, client_context(_ca(folder)))
    try:
        more: dict[str, Any] = {"invoker": invoker, "task_port": task_port, "minter": Mounts()}
        async with walking(dsns["state"], dsns["queue"], folder, **more) as walk:
            sink = SinkSystem(walk, spark, dsns["data"], folder)
            async with sink.sinking():
                settings = settings_for(walk, folder, port=runner_port, sandboxes=6, per_org=6, memory_mb=256)
                updates = {
                    "queue": QueueSettings(dsn=SecretStr(dsns["queue"])),
                    "objects": settings.objects.model_copy(update={"folder": folder / "objects"}),
                }
                yield UdfSystem(walk, settings.model_copy(update=updates), dsns, sink)
    finally:
        await invoker.close()


@asynccontextmanager
async def udf_on_lambda(
    dsns: Mapping[str, str], folder: Path, server: LambdaServer, s3: Mapping[str, Any] | None = None
) -> AsyncIterator[FunctionSystem]:
    """With the runner as a function of Lambda. `s3`: what a walk needs to have its objects there: to write rows."""
    (task_port,) = free_ports(1)
    invoker = LambdaInvoker(lambda_settings(server), calls=8)
    try:
        more: dict[str, Any] = {"invoker": invoker, "task_port": task_port, **(s3 or {"minter": Mounts()})}
        async with walking(dsns["state"], dsns["queue"], folder, **more) as walk:
            server.environment |= {
                "TRACE_ENDPOINTS__DISPATCHER_TASK": walk.listeners["dispatcher_task"],
                "TRACE_TLS__CA": str(walk.ca),
            }
            yield FunctionSystem(walk, settings_for(walk, folder), dsns)
    finally:
        await invoker.close()


@asynccontextmanager
async def serving(system: UdfSystem) -> AsyncIterator[Functions]:
    """A runner: its listener, and tasks of `ecs_udf` from the queue."""
    walk, settings = system.walk, system.settings
    stores = Stores(settings, walk.control.objects, walk.tasks, lambda _: walk.control.objects)
    async with (
        running(settings, choose_isolation(), walk.dispatcher, walk.tasks, stores) as functions,
        open_listeners([runner_api(functions, settings.udf)], settings.tls),
    ):
        runner = SandboxRunner(functions, walk.tasks, asyncio.get_running_loop())
        wrapper = Wrapper(walk.control.queue, "tasks-ecs_udf", walk.dispatcher, walk.tasks, runner, "runner", 3)
        stop = asyncio.Event()
        working = asyncio.create_task(wrapper.work(stop))
        try:
            yield functions
        finally:
            stop.set()
            await working


def _ca(folder: Path) -> Path:
    return ensure_certificates(folder / "tls", datetime.now(UTC)).ca
