"""One event from its arrival to the commit, in the order of docs/concepts/one_event.md: the first test to read.

Listeners, outbox, queue, worker, Spark, files and databases are real. The test does what the Dispatcher's loops do, and
holds the completion on its way, to see what there is between two steps. `test_many_events.py` lets all run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import msgspec
import pyarrow as pa
import pytest

from tests.support.dispatcher.control import WORKS, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.listeners import settings_in
from tests.support.dispatcher.run_tasks import Held, claim_one, drain, settle
from tests.support.dispatcher.staged_files import current_partitions, names
from tests.support.identity.service_tokens import AnyService, store_service_tokens
from tests.support.operators import registered
from tests.support.spark.session import shared_session
from tests.support.systems.walk import working
from tests.support.tls import https, trusting
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.capability.verifier import Verifier
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.http.internal_routes import internal_api
from tracelake.dispatcher.http.task_routes import task_api
from tracelake.operators.api.context import Resources
from tracelake.runtime.listeners import Listener, open_listeners
from tracelake.store.signing_keys import published
from tracelake.wire.client import DispatcherClient, TaskClient
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Claimed
from tracelake.wire.task.markers import attempt_folder
from tracelake.worker.run_task import Runner
from tracelake.worker.wrapper import Wrapper

pytestmark = pytest.mark.anyio

DAG = """
name: walk
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - {name: numbers, operator: written, inputs: [{from: {job: ask}}]}
  - {name: feed, operator: written, source: {kind: manual}}
  - name: doubled
    operator: sql
    inputs: [{from: {job: feed}}, {from: {job: numbers}, trigger: false}]
    config: {query: "SELECT block_number, value * 2 AS value FROM numbers"}
  - {name: watch, operator: written, runtime: ecs_udf, inputs: [{from: {job: feed}}]}
  - {name: after, operator: written, inputs: [{from: {job: doubled}}]}
"""
QUEUE, OTHER_QUEUE = "tasks-ecs_platform", "tasks-ecs_udf"

STORED = """
SELECT e.routed_at IS NOT NULL AS routed, o.status::text AS entry, e.xmin = o.xmin AS in_one_transaction
  FROM events e JOIN outbox o ON o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text
 WHERE e.producer_task_id = $1
"""
TASK = """
SELECT t.id, t.status::text FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1
"""
ATTEMPT = """
SELECT t.status::text, a.worker_id, t.lease_token IS NOT NULL AND t.lease_expires_at > now() AS leased
  FROM tasks t JOIN task_attempts a ON a.task_id = t.id AND a.attempt = t.attempt
 WHERE t.id = $1
"""
RENEWED = "SELECT last_heartbeat > started_at FROM tasks WHERE id = $1"
COMMITTED = """
SELECT t.status::text, p.partition_key, p.row_count, e.scope, e.routed_at IS NOT NULL AS routed, n.status::text AS next,
       t.xmin = e.xmin AND e.xmin = n.xmin AND e.created_at = c.created_at AS in_one_transaction
  FROM tasks t
  JOIN events e ON e.producer_task_id = t.id
  JOIN partition_versions p ON p.dataset_version = e.dataset_version AND p.valid_to IS NULL
  JOIN commits c ON c.dataset_version = p.dataset_version AND c.number = p.valid_from
  JOIN tasks n ON n.job_id = (SELECT id FROM jobs WHERE name = 'after')
 WHERE t.id = $1
"""


async def test_one_event(state_db: str, queue_db: str, tmp_path: Path) -> None:
    async with walking(state_db, queue_db, tmp_path) as walk:
        feed = await walk.attempt_of_a_source()
        source = feed[0].task.task_id

        # 1. The call arrives. Its capability token is verified.
        assert (await walk.send_event(feed, token="another")).status_code == 401
        assert (await walk.send_event(feed)).status_code == 200

        # 2. The event is stored. So is an outbox entry, in the same transaction.
        assert await walk.row(STORED, source) == {"routed": False, "entry": "Pending", "in_one_transaction": True}

        # 3. The outbox is drained. The entry is done.
        await drain(walk.control)
        assert (await walk.row(STORED, source))["entry"] == "Done"

        # 4. The event is routed. Each job that reads the dataset has a task.
        assert (await walk.row(STORED, source))["routed"] is True
        tasks = {job: await walk.row(TASK, job) for job in ("doubled", "watch")}
        assert [task["status"] for task in tasks.values()] == ["Queued", "Queued"]
        task = tasks["doubled"]["id"]

        # 5. The wake-up is published. It is `{task_id}` and nothing else, on the queue of each task's runtime.
        assert await walk.messages(QUEUE) == [{"task_id": str(task)}]
        assert await walk.messages(OTHER_QUEUE) == [{"task_id": str(tasks["watch"]["id"])}]

        async with walk.at_work():
            # 6. A worker receives it. It is no longer on the queue.
            await until(walk.completion.reported.is_set, "the worker reports what it did")
            assert await walk.messages(QUEUE) == []

            # 7. The task is claimed. It is running, and has a lease.
            assert await walk.row(ATTEMPT, task) == {"status": "Running", "worker_id": "a worker", "leased": True}

            # 8. The operator runs. Its files are in its attempt's folder, and no query sees them; the lease is renewed.
            assert await walk.files_of(task) == {"doubled_0_0_9.parquet", "_SUCCESS"}
            assert await walk.partitions() == ["0-9"]  # of `numbers`
            await until(lambda: walk.control.pool.fetchval(RENEWED, task), "the lease is renewed")

            # 9. The completion is accepted. Task, outputs, the next event and the task that it creates are one commit.
            walk.completion.let_through.set()
            await until(lambda: walk.is_over("doubled"), "the attempt is over")
        made = {"status": "Completed", "partition_key": "0-9", "row_count": 10, "scope": "partition:0-9"}
        made |= {"routed": True, "next": "Queued", "in_one_transaction": True}
        assert await walk.row(COMMITTED, task) == made
        assert await walk.partitions() == ["0-9", "0-9"]

        # And on from step 5.
        await drain(walk.control)
        assert await walk.messages(QUEUE) == [{"task_id": str((await walk.row(TASK, "after"))["id"])}]


class HeldCompletion(httpx.AsyncBaseTransport):
    """From the worker to the task API: its completion waits here until the test lets it through."""

    def __init__(self, line: httpx.AsyncBaseTransport) -> None:
        self._line, self.reported, self.let_through = line, asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/task/complete":
            self.reported.set()
            await self.let_through.wait()
        return await self._line.handle_async_request(request)

    async def aclose(self) -> None:
        await self._line.aclose()


@dataclass(frozen=True)
class Walk:
    control: Control
    org: Org
    task_api: httpx.AsyncClient
    worker: Wrapper
    completion: HeldCompletion

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with working(self.worker):
            try:
                yield
            finally:
                self.completion.let_through.set()  # else the worker would never end

    async def attempt_of_a_source(self) -> Held:
        await trigger(self.control, self.org.id, "walk", "feed", start=0, end=9, request_id=uuid4())
        await drain(self.control)
        held = await claim_one(self.control)
        assert held is not None
        await take_all(self.control)
        return held

    async def send_event(self, held: Held, token: str | None = None) -> httpx.Response:
        """As the attempt of a source reports that it has written a range."""
        task, _ = held
        output = task.task.outputs[0]
        event = {"dataset_uuid": output.dataset_uuid, "dataset_version": output.dataset_version, "start": 0, "end": 9}
        fence = {"task_id": task.task.task_id, "attempt": task.attempt, "lease_token": task.lease_token}
        body = msgspec.json.encode({**fence, "events": [event]})
        headers = {CAPABILITY_HEADER: token or task.capability_token}
        return await self.task_api.post("/v1/task/events", content=body, headers=headers)

    async def row(self, sql: str, *values: object) -> dict[str, Any]:
        (found,) = await self.control.pool.fetch(sql, *values)
        return dict(found)

    async def messages(self, queue: str) -> list[Any]:
        """What is on a queue; it stays there."""
        found = await self.control.queue.receive(queue, max_messages=10, visibility=timedelta(minutes=1))
        await self.control.queue.release(queue, [delivery.receipt for delivery in found], timedelta())
        return [msgspec.json.decode(delivery.body) for delivery in found]

    async def files_of(self, task: UUID) -> set[str]:
        generation = "SELECT storage_location FROM dataset_versions v JOIN datasets d ON d.id = v.dataset_uuid"
        location = await self.control.pool.fetchval(f"{generation} WHERE d.producer_job_name = 'doubled'")
        return names(self.control, attempt_folder(location, task, 1))

    async def partitions(self) -> list[str]:
        """Those that queries see."""
        return [key for key, _ in await current_partitions(self.control)]

    async def is_over(self, job: str) -> bool:
        return (await self.row(TASK, job))["status"] not in {"Queued", "Running"}


@asynccontextmanager
async def walking(state_db: str, queue_db: str, folder: Path) -> AsyncIterator[Walk]:
    """A Dispatcher's listeners without its loops, a worker, and a DAG of which `numbers` has rows."""
    settings, spark = settings_in(folder), shared_session()
    async with control_for(state_db, queue_db, folder) as bare:
        verifier = Verifier(lambda: published(bare.pool), settings.tokens)
        apis = {"task": task_api(bare, verifier), "internal": internal_api(bare)}
        listeners = [Listener(name, "127.0.0.1", 0, api) for name, api in apis.items()]
        line = HeldCompletion(httpx.AsyncHTTPTransport(verify=trusting(settings.tls.ca)))
        await store_service_tokens(bare.pool)
        with registered(written=replace(WORKS, runtimes=frozenset({"ecs_platform", "ecs_udf"}))):
            async with (
                open_listeners(listeners, settings.tls) as at,
                https(at["task"], settings.tls.ca) as task,
                https(at["task"], settings.tls.ca, transport=line) as of_worker,
                https(at["internal"], settings.tls.ca, auth=AnyService()) as internal,
            ):
                org = await an_org(bare.pool)
                await deployed_and_active(bare, org, DAG)
                await bare.pool.execute("UPDATE jobs SET heartbeat_interval_seconds = 1")
                await trigger(bare, org.id, "walk", "ask", start=0, end=9, request_id=uuid4())
                await settle(bare, content=ten_rows)
                runner = Runner(bare.objects, Resources(), spark)
                clients = DispatcherClient(internal), TaskClient(of_worker)
                worker = Wrapper(bare.queue, QUEUE, *clients, runner, "a worker", 1)
                yield Walk(bare, org, task, worker, line)
                await verifier.close()


async def take_all(control: Control) -> None:
    """The wake-ups of tasks that ran before."""
    found = await control.queue.receive(QUEUE, max_messages=10, visibility=timedelta(minutes=1))
    await control.queue.ack(QUEUE, [delivery.receipt for delivery in found])


async def ten_rows(_: Control, __: Claimed) -> pa.Table:
    return pa.table({"block_number": list(range(10)), "value": list(range(10))})
