"""What a walk needs: a Dispatcher as it really runs, workers as they really run, on databases of the test's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests.support.dispatcher.control import Org, an_org, control_for
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.activate import activate_dag
from tracelake.dispatcher.dags.deploy import deploy_dag
from tracelake.dispatcher.process import dispatching
from tracelake.dispatcher.runtimes.known import INVOKERS
from tracelake.lite.certificates import ensure_certificates
from tracelake.operators.api.context import Resources
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import CredentialMinter, Invoker, ObjectStore
from tracelake.runtime.http_client import AsyncClient, close_when_canceled
from tracelake.settings import DispatcherSettings, ObjectSettings, TlsSettings, load_settings
from tracelake.store.db import OUTAGES
from tracelake.store.identity import hash_token
from tracelake.store.signing_keys import published
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task_messages import TaskPayload
from tracelake.worker.run_task import Runner, run_pure
from tracelake.worker.wrapper import Wrapper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN = "the worker token"
SECONDS = 90
DAG = """
name: walk
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: work, operator: noop, runtime: ecs_platform, inputs: [{from: {job: ask}}]}
  - {name: after, operator: noop, runtime: dispatcher, inputs: [{from: {job: work}}]}
"""


@dataclass(frozen=True)
class Walk:
    control: Control
    org: Org
    dispatcher: DispatcherClient
    tasks: TaskClient
    listeners: Mapping[str, str]
    ca: Path

    def worker(
        self,
        name: str,
        run: Callable[[TaskPayload], Outcome] = run_pure,
        *,
        spark: SparkSession | None = None,
        resources: Resources | None = None,
    ) -> Wrapper:
        """Without `spark` it runs only what needs no rows."""
        runner = Runner(self.control.objects, resources or Resources(), spark, pure=run)
        return Wrapper(self.control.queue, "tasks-ecs_platform", self.dispatcher, self.tasks, runner, name, 4)

    async def statuses(self, job: str) -> list[str]:
        rows = await self.control.pool.fetch(
            "SELECT t.status::text FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 ORDER BY t.id", job
        )
        return [row["status"] for row in rows]

    async def until(self, job: str, statuses: list[str]) -> None:
        """The database may be away while we wait: that is what some of the tests are about."""
        async with asyncio.timeout(SECONDS):
            while await self.statuses_if_there(job) != statuses:  # noqa: ASYNC110 - several processes' work is waited for
                await asyncio.sleep(0.02)

    async def until_nothing_is_owed(self) -> None:
        owed = "SELECT count(*) FROM outbox WHERE status IN ('Pending', 'Processing')"
        async with asyncio.timeout(SECONDS):
            while await self.control.pool.fetchval(owed):  # noqa: ASYNC110 - the loops' work is waited for
                await asyncio.sleep(0.02)

    async def statuses_if_there(self, job: str) -> list[str]:
        """None of any while the database is away."""
        try:
            return await self.statuses(job)
        except OUTAGES:
            return []


@asynccontextmanager
async def walking(
    state_db: str,
    queue_db: str,
    tmp_path: Path,
    *,
    replica: str = "one",
    deploys: bool = True,
    beat_seconds: float = 5.0,
    objects: ObjectStore | None = None,
    minter: CredentialMinter | None = None,
    places: ObjectSettings | None = None,
    invoker: Invoker | None = None,
    task_port: int = 0,
    line: Callable[[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport] = lambda as_it_is: as_it_is,
) -> AsyncIterator[Walk]:
    """A Dispatcher with its doors and loops; a second one is a second call that deploys nothing.

    `line` stands between workers and the Dispatcher's internal door.
    """
    files = ensure_certificates(tmp_path / "tls", datetime.now(UTC))
    tls = TlsSettings(ca=files.ca, cert=files.cert, key=files.key)
    settings = load_settings({}, home=tmp_path).model_copy(
        update={"tls": tls, "dispatcher": DispatcherSettings(beat_seconds=beat_seconds, task_port=task_port)}
    )
    async with control_for(state_db, queue_db, tmp_path, replica=replica) as bare:
        verifier = Verifier(lambda: published(bare.pool), settings.tokens)
        control = replace(
            bare,
            minted=verifier.remember,
            objects=objects or bare.objects,
            minter=minter,
            places=places or bare.places,
            invokers=INVOKERS if invoker else bare.invokers,
            task_url=f"https://127.0.0.1:{task_port}",
        )
        org = await _deployed(control) if deploys else await _found(control)
        context = ssl.create_default_context(cafile=files.ca)
        headers = {"X-Trace-Worker-Token": TOKEN}
        async with (
            dispatching(control, verifier, settings, invoker) as listeners,
            AsyncClient(
                base_url=listeners["dispatcher_internal"],
                headers=headers,
                transport=line(close_when_canceled(httpx.AsyncHTTPTransport(verify=context))),
                timeout=SECONDS,
            ) as internal,
            AsyncClient(base_url=listeners["dispatcher_task"], verify=context, timeout=SECONDS) as task,
        ):
            yield Walk(control, org, DispatcherClient(internal), TaskClient(task), listeners, files.ca)


@asynccontextmanager
async def working(wrapper: Wrapper) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(wrapper.work(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _deployed(control: Control) -> Org:
    org = await an_org(control.pool)
    token = "INSERT INTO worker_tokens (name, token_hash) VALUES ('w', $1)"
    await control.pool.execute(token, hash_token(TOKEN))
    deployed = await deploy_dag(control, org.id, org.user, DAG)
    await activate_dag(control, org.id, "walk", deployed.dag_version_id)
    return org


async def _found(control: Control) -> Org:
    row = await control.pool.fetchrow("SELECT o.id, u.id AS user FROM orgs o JOIN users u ON u.org_id = o.id")
    assert row is not None
    return Org(row["id"], row["user"])
