"""A worker that does nothing but be one: receives wake-ups, claims, completes, acknowledges; as fast as it can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from bench.rig import Rig
from tests.support.identity.service_tokens import as_gateway, as_service
from tracelake.wire.client import completions
from tracelake.wire.task.lifecycle import ClaimBatchAnswer, Claimed, NotClaimed
from tracelake.wire.task.outputs import (
    CompleteAnswer,
    CompleteBatchAnswer,
    CompleteBatchRequest,
    CompleteItem,
    CompleteRequest,
)

QUEUE = "tasks-ecs_platform"
ANSWER = msgspec.json.Decoder(Claimed | NotClaimed)
BATCH_ANSWER = msgspec.json.Decoder(ClaimBatchAnswer)


class NoopWorker:
    """`events(claimed)` says which events the completion carries; `claimed_at` and `done` are for the figures."""

    def __init__(
        self, rig: Rig, http: aiohttp.ClientSession, events: Callable[[Claimed], list[Any]], claims: int
    ) -> None:
        self._most = claims
        self._rig = rig
        self._http = http
        self._events = events
        self._todo: asyncio.Queue[Any] = asyncio.Queue()
        self._receipts: list[Any] = []
        self._completions = completions(self._report)
        self.done = 0
        self.claims: dict[str, float] = {}
        self.completions: dict[str, float] = {}
        self.progress = asyncio.Event()

    async def wait_for(self, done: int, seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while self.done < done:
                await self.progress.wait()
                self.progress.clear()

    async def receive(self) -> None:
        while True:
            for delivery in await self._rig.receive(100, 5.0):
                self._todo.put_nowait(delivery)

    async def acknowledge(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            if self._receipts:
                batch, self._receipts = self._receipts, []
                await self._rig.queue.ack(QUEUE, batch)

    async def work(self, free: asyncio.Semaphore) -> None:
        """As the wrapper does: as many wake-ups as there are free slots are claimed in one call."""
        async with asyncio.TaskGroup() as group:
            while True:
                deliveries = [await self._todo.get()]
                await free.acquire()
                while len(deliveries) < self._most and not self._todo.empty() and not free.locked():
                    await free.acquire()
                    deliveries.append(self._todo.get_nowait())
                group.create_task(self._claim(deliveries, group, free))

    async def _claim(self, deliveries: list[Any], group: asyncio.TaskGroup, free: asyncio.Semaphore) -> None:
        tasks = [msgspec.json.decode(delivery.body)["task_id"] for delivery in deliveries]
        for delivery, answer in zip(deliveries, await self._answers(tasks), strict=True):
            group.create_task(self._run(delivery, answer, free))

    async def _answers(self, tasks: list[str]) -> list[Claimed | NotClaimed]:
        if self._most == 1:
            body = msgspec.json.encode({"task_id": tasks[0], "worker_id": "bench"})
            return [ANSWER.decode(await self._ask("task-claim", body))]
        body = msgspec.json.encode({"task_ids": tasks, "worker_id": "bench"})
        return BATCH_ANSWER.decode(await self._ask("task-claim-batch", body)).answers

    async def _ask(self, verb: str, body: bytes) -> bytes:
        url, headers = f"{self._rig.internal_api}/internal/{verb}", as_service("worker")
        async with self._http.post(url, data=body, headers=headers) as got:
            return await got.read()

    async def _report(self, items: Sequence[CompleteItem]) -> Sequence[CompleteAnswer]:
        """As the wrapper's client does."""
        if len(items) == 1:
            headers = {"x-trace-task-capability": items[0].capability_token}
            reply = await self._post("complete", msgspec.json.encode(items[0].completion), headers)
            return [msgspec.json.decode(reply, type=CompleteAnswer)]
        reply = await self._post("complete-batch", msgspec.json.encode(CompleteBatchRequest(items=list(items))), {})
        answers = [outcome.answer for outcome in msgspec.json.decode(reply, type=CompleteBatchAnswer).outcomes]
        assert None not in answers, reply
        return [item for item in answers if item]

    async def _post(self, verb: str, body: bytes, headers: dict[str, str]) -> bytes:
        async with self._http.post(f"{self._rig.task_api}/v1/task/{verb}", data=body, headers=headers) as got:
            reply = await got.read()
            assert got.status == 200, reply
            return reply

    async def _run(self, delivery: Any, answer: Claimed | NotClaimed, free: asyncio.Semaphore) -> None:
        if isinstance(answer, Claimed):
            self.claims[str(answer.task.task_id)] = time.perf_counter()
            await self._complete(answer)
        self._receipts.append(delivery.receipt)
        free.release()

    async def _complete(self, claimed: Claimed) -> None:
        body = {
            "task_id": claimed.task.task_id,
            "attempt": claimed.attempt,
            "lease_token": claimed.lease_token,
            "status": "Completed",
            "events": self._events(claimed),
        }
        completion = CompleteRequest(**body)  # type: ignore[arg-type]
        await self._completions(CompleteItem(capability_token=claimed.capability_token, completion=completion))
        self.completions[str(claimed.task.task_id)] = time.perf_counter()
        self.done += 1
        self.progress.set()


@asynccontextmanager
async def working(
    rig: Rig, events: Callable[[Claimed], list[Any]], concurrency: int, claims: int = 16
) -> AsyncIterator[NoopWorker]:
    """`claims`: how many at most in one call."""
    connector = aiohttp.TCPConnector(ssl=rig.tls, limit=concurrency)
    async with aiohttp.ClientSession(connector=connector) as http:
        worker = NoopWorker(rig, http, events, claims)
        tasks = [asyncio.create_task(worker.receive()), asyncio.create_task(worker.acknowledge())]
        tasks += [asyncio.create_task(worker.work(asyncio.Semaphore(concurrency)))]
        try:
            yield worker
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def ask(rig: Rig, method: str, path: str, body: Any, user: str = "local|admin") -> Any:
    """A call of the user API, as the Gateway makes it."""
    headers = {**as_gateway(user), "content-type": "application/json"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=rig.tls)) as http,
        http.request(
            method,
            f"{rig.internal_api}/internal/v1{path}",
            data=None if body is None else msgspec.json.encode(body),
            headers=headers,
        ) as got,
    ):
        answer = msgspec.json.decode(await got.read())
        assert got.status < 300, answer
        return answer


async def deploy(rig: Rig, name: str, yaml: str) -> None:
    version = await ask(rig, "POST", f"/dags/{name}/versions", {"yaml": yaml})
    await ask(rig, "PUT", f"/dags/{name}/active", {"dag_version_id": version["dag_version_id"]})


async def hand_to_workers(rig: Rig, *jobs: str) -> None:
    """Their tasks go to the queue instead of running in the Dispatcher: what is measured is the way to a worker."""
    await rig.pool.execute("UPDATE jobs SET runtime = 'ecs_platform' WHERE name = ANY ($1::text[])", list(jobs))


async def dataset_of(rig: Rig, job: str) -> tuple[Any, Any]:
    """The job's output and its generation."""
    row = await rig.pool.fetchrow(
        "SELECT d.id, s.dataset_version FROM datasets d JOIN dag_version_datasets s ON s.dataset_uuid = d.id"
        " WHERE d.producer_job_name = $1",
        job,
    )
    assert row is not None
    return row["id"], row["dataset_version"]


async def trigger(rig: Rig, job: str, **scope: int) -> None:
    await ask(rig, "POST", f"/dags/bench/jobs/{job}/trigger", scope)


async def emit(rig: Rig, job: str, count: int, first: int = 1) -> None:
    """That many cursor events of a source, stored with their outbox entries as a trigger stores them, in one statement.

    Their runs have ids that rise with time, as those of tasks do, whose events most events are.
    """
    dataset, version = await dataset_of(rig, job)
    await rig.pool.execute(
        "WITH accepted AS ("
        " INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope,"
        " cursor_value)"
        " SELECT $1, 'manual', 'cursor', uuidv7(), $2, $3, 'cursor:' || n, n"
        " FROM generate_series($5::int, $5::int + $4::int - 1) n"
        " RETURNING id, org_id, dataset_uuid)"
        " INSERT INTO outbox (org_id, kind, payload, turn_of)"
        " SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted",
        rig.org_id,
        dataset,
        version,
        count,
        first,
    )
