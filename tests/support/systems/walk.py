"""A Dispatcher with its listeners and loops, and workers, in this process, on databases of the test's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import httpx

from tests.support.aws.emr_server import APPLICATION
from tests.support.dispatcher.control import Org, an_org, control_for, deployed_and_active
from tests.support.identity.service_tokens import AnyService, store_service_tokens
from tests.support.tls import https, tls_in, trusting
from tests.support.verbs import trigger
from tests.support.waiting import SECONDS, until
from tracelake.adapters.invoker_emr import EmrJobRunner
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.dags.deploy import Deployed
from tracelake.dispatcher.process import dispatching
from tracelake.dispatcher.runtimes.known import INVOKERS
from tracelake.domain.access.seal import Seal
from tracelake.operators.api.context import Resources, TaskApi
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import CredentialMinter, Invoker, ObjectStore
from tracelake.runtime.http_client import close_when_canceled
from tracelake.settings import (
    JOB_RUNS,
    DispatcherSettings,
    ObjectSettings,
    QueueSettings,
    RuntimeSettings,
    TokenSettings,
    load_settings,
)
from tracelake.store.db import OUTAGES
from tracelake.store.signing_keys import published
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.task.lifecycle import Claimed, TaskPayload
from tracelake.wire.task.outputs import CompleteRequest
from tracelake.worker.run_task import Finished, Runner, RunsTasks, run_pure
from tracelake.worker.wrapper import Wrapper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        """Until the tasks of a job have these states. The database may be unavailable meanwhile."""

        async def reached() -> bool:
            return await self.statuses(job) == statuses

        await until(reached, f"the tasks of {job} are {statuses}", ignoring=OUTAGES)

    async def until_outbox_is_empty(self) -> None:
        published = "SELECT NOT EXISTS (SELECT FROM outbox WHERE status IN ('Pending', 'Processing'))"
        await until(lambda: self.control.pool.fetchval(published), "every outbox entry is published")


@dataclass(frozen=True)
class OnDispatcher:
    """What every system on top of a Dispatcher can do."""

    walk: Walk

    async def deploy(self, text: str, org: Org | None = None) -> Deployed:
        return await deployed_and_active(self.walk.control, org or self.walk.org, text)

    async def trigger(
        self,
        dag: str,
        job: str,
        start: int | None = None,
        end: int | None = None,
        *,
        org: Org | None = None,
        **scope: Any,
    ) -> None:
        """Trigger a manual source: `start` and `end`, `partition`, `cursor`, or nothing for the whole."""
        whose = (org or self.walk.org).id
        await trigger(self.walk.control, whose, dag, job, start=start, end=end, request_id=uuid4(), **scope)

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        return list(await self.walk.control.pool.fetch(sql, *values))

    async def until(self, sql: str, *values: Any) -> Any:
        """Until this query of the state database returns a true value."""
        return await until(lambda: self.walk.control.pool.fetchval(sql, *values), f"{sql} {values} is true")

    async def claim_task(self, job: str, org: Org | None = None) -> Claimed:
        """Claim the next task of a job, once its wake-up is published."""
        find = (
            "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE t.status = 'Queued'"
            " AND t.woken_at IS NOT NULL AND j.name = $1 AND t.org_id = $2 ORDER BY t.id LIMIT 1"
        )

        async def claimed() -> Claimed | None:
            task = await self.walk.control.pool.fetchval(find, job, (org or self.walk.org).id)
            answer = (await self.walk.dispatcher.claim_batch([task], "a test"))[0] if task else None
            return answer if isinstance(answer, Claimed) else None

        return await until(claimed, f"a task of {job} is claimed")


@asynccontextmanager
async def walking(
    state_db: str,
    queue: str | QueueSettings,
    tmp_path: Path,
    *,
    tokens: TokenSettings | None = None,
    replica: str = "one",
    deploys: bool = True,
    beat_seconds: float = 5.0,
    objects: ObjectStore | None = None,
    minter: CredentialMinter | None = None,
    places: ObjectSettings | None = None,
    invoker: Invoker | None = None,
    job_runner: Callable[[Control, Path], EmrJobRunner] | None = None,
    task_port: int = 0,
    seal: Seal | None = None,
    line: Callable[[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport] = lambda as_it_is: as_it_is,
) -> AsyncIterator[Walk]:
    """A Dispatcher with its listeners and loops; a second one is a second call that deploys nothing.

    `line` wraps the transport from workers to the Dispatcher's internal API. `job_runner` makes what runs the tasks of
    `emr_serverless`, given the file of the certificates' authority.
    """
    tls = tls_in(tmp_path / "tls")
    assert tls.ca is not None
    settings = load_settings({}, home=tmp_path).model_copy(
        update={"tls": tls, "dispatcher": DispatcherSettings(beat_seconds=beat_seconds, task_port=task_port)}
    )
    async with control_for(state_db, queue, tmp_path, replica=replica, tokens=tokens, seal=seal) as bare:
        verifier = Verifier(lambda: published(bare.pool), settings.tokens)
        control = replace(
            bare,
            minted=verifier.remember,
            objects=objects or bare.objects,
            minter=minter,
            places=places or bare.places,
            invokers=INVOKERS if invoker or job_runner else bare.invokers,
            runtimes=with_job_runs(bare.runtimes) if job_runner else bare.runtimes,
            task_url=f"https://127.0.0.1:{task_port}",
        )
        org = await _deployed(control) if deploys else await _found(control)
        runners = {JOB_RUNS: job_runner(control, tls.ca)} if job_runner else {}
        async with (
            dispatching(control, verifier, settings, invoker, job_runners=runners) as listeners,
            https(
                listeners["dispatcher_internal"],
                tls.ca,
                auth=AnyService(),
                transport=line(close_when_canceled(httpx.AsyncHTTPTransport(verify=trusting(tls.ca)))),
            ) as internal,
            https(listeners["dispatcher_task"], tls.ca) as task,
        ):
            yield Walk(control, org, DispatcherClient(internal), TaskClient(task), listeners, tls.ca)
        for runner in runners.values():
            await runner.close()


def with_job_runs(runtimes: Mapping[str, RuntimeSettings]) -> Mapping[str, RuntimeSettings]:
    changed = runtimes[JOB_RUNS].model_copy(update={"application": APPLICATION})
    return {**runtimes, JOB_RUNS: changed}


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
    await store_service_tokens(control.pool)
    await deployed_and_active(control, org, DAG)
    return org


async def _found(control: Control) -> Org:
    row = await control.pool.fetchrow("SELECT o.id, u.id AS user FROM orgs o JOIN users u ON u.org_id = o.id")
    assert row is not None
    return Org(row["id"], row["user"])


@dataclass
class Holds:
    """Runs each task until it is let go or canceled."""

    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    canceled: threading.Event = field(default_factory=threading.Event)
    stop_requested: threading.Event = field(default_factory=threading.Event)
    ended: set[UUID] = field(default_factory=set)
    """Tasks that were canceled."""
    runs: int = 0

    def run(self, claimed: Claimed, listener: TaskApi) -> Finished:
        self.stop_requested = listener.stop_requested
        self.runs += 1
        self.begun.set()
        while not (self.let_go.wait(0.02) or claimed.task.task_id in self.ended):
            pass
        return Finished(
            CompleteRequest(
                task_id=claimed.task.task_id,
                attempt=claimed.attempt,
                lease_token=claimed.lease_token,
                status="Completed",
            )
        )

    def cancel(self, claimed: Claimed) -> None:
        self.ended.add(claimed.task.task_id)
        self.canceled.set()


@dataclass
class HoldsOne:
    """Runs tasks as `runner` does; the first of `job` writes everything, and is then held: it reports nothing."""

    runner: RunsTasks
    job: str
    held: Claimed | None = None
    late: Finished | None = None
    written: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)

    def run(self, claimed: Claimed, api: TaskApi) -> Finished:
        hold = claimed.task.job.name == self.job and self.held is None
        if hold:
            self.held = claimed
        finished = self.runner.run(claimed, api)
        if hold:
            self.late = finished
            self.written.set()
            self.let_go.wait(SECONDS)
        return finished

    def cancel(self, claimed: Claimed) -> None:
        if claimed is not self.held:
            self.runner.cancel(claimed)


async def until_set(happened: threading.Event, holds: Holds) -> None:
    """Lets the tasks go if it never happens: their threads would keep the test from ending."""
    try:
        await until(happened.is_set, "the event of a held task is set")
    except TimeoutError:
        holds.let_go.set()
        raise


async def start_held_task(walk: Walk, holds: Holds, *, interval: int = 1, lease: int = 60) -> None:
    timed = "UPDATE jobs SET heartbeat_interval_seconds = $1, heartbeat_timeout_seconds = $2"
    await walk.control.pool.execute(timed, interval, lease)
    await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
    await until_set(holds.begun, holds)


def held_worker(walk: Walk, holds: Holds, http: httpx.AsyncClient | None = None) -> Wrapper:
    return replace(walk.worker("w"), runner=holds, tasks=TaskClient(http) if http else walk.tasks)


async def held_task(walk: Walk) -> UUID:
    found: UUID = await walk.control.pool.fetchval(
        "SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'work'"
    )
    return found
