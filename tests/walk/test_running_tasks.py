"""The running tasks of a worker go on, or are ended at once, whatever happens to the queue and the connections."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

import asyncpg
import httpx
import pytest

from tests.support.dispatcher.control import PULL, deployed_and_active
from tests.support.operators import registered
from tests.support.systems.walk import Holds, Walk, held_task, held_worker, start_held_task, until_set, walking, working
from tests.support.tls import trusting
from tests.support.verbs import cancel_task, trigger
from tests.support.waiting import SECONDS, until
from tracelake.errors import TraceError
from tracelake.operators.api.context import Resources, TaskApi
from tracelake.operators.api.outcome import Outcome
from tracelake.ports import Delivery, Queue
from tracelake.runtime.http_client import AsyncClient, close_when_canceled
from tracelake.wire.message import CAPABILITY_HEADER
from tracelake.wire.task.lifecycle import Claimed, TaskPayload
from tracelake.worker.run_task import Finished, Runner

pytestmark = pytest.mark.anyio


class Sources(Runner):
    """Sources run until they are stopped, and other tasks to their end."""

    def run(self, claimed: Claimed, listener: TaskApi) -> Finished:
        if claimed.task.timeout_seconds is None:
            listener.stop_requested.wait()
        return super().run(claimed, listener)


class Line(httpx.AsyncBaseTransport):
    """Between a worker and the task API; a request for `path` goes through `through` first."""

    def __init__(self, walk: Walk, path: str, through: Callable[[httpx.Request], Awaitable[None]]) -> None:
        self.line = close_when_canceled(httpx.AsyncHTTPTransport(verify=trusting(walk.ca)))
        self.path, self.through = path, through

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(self.path):
            await self.through(request)
        return await self.line.handle_async_request(request)

    async def aclose(self) -> None:
        await self.line.aclose()


def tasks_over(walk: Walk, line: Line) -> httpx.AsyncClient:
    return AsyncClient(base_url=walk.listeners["dispatcher_task"], transport=line, timeout=SECONDS)


async def test_a_heartbeat_that_is_refused_for_any_reason_ends_the_work_at_once(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    """The lease is lost, so its result cannot count; and its slot is free only when it has ended."""

    async def loses_its_token(request: httpx.Request) -> None:
        request.headers[CAPABILITY_HEADER] = "invalid"

    holds = Holds()
    async with (
        walking(state_db, queue_db, tmp_path) as walk,
        tasks_over(walk, Line(walk, "/heartbeat", loses_its_token)) as http,
    ):
        async with working(held_worker(walk, holds, http)):
            await start_held_task(walk, holds)
            await until_set(holds.canceled, holds)
        assert await walk.statuses("work") == ["Running"], "nothing was reported"


async def test_a_cancel_reaches_the_worker_while_the_queue_fails(state_db: str, queue_db: str, tmp_path: Path) -> None:
    holds = Holds()
    async with walking(state_db, queue_db, tmp_path) as walk, working(held_worker(walk, holds)):
        await start_held_task(walk, holds)
        await out_of_order(queue_db, "extend(text, uuid[], interval)")
        await cancel_task(walk.control, walk.org.id, await held_task(walk), "not wanted any more")
        await until_set(holds.canceled, holds)


async def test_as_many_tasks_run_at_once_as_a_worker_has_slots(state_db: str, queue_db: str, tmp_path: Path) -> None:
    """However few cores the machine has: tasks mostly wait, for Spark, a node or a sandbox."""
    slots = 2 * (os.cpu_count() or 1) + 40  # more than Python's own pool has threads
    together = threading.Barrier(slots, timeout=SECONDS)

    def run(_task: TaskPayload) -> Outcome:
        together.wait()
        return Outcome()

    async with (
        walking(state_db, queue_db, tmp_path) as walk,
        working(replace(walk.worker("wide", run), concurrency=slots)),
    ):
        for cursor in range(slots):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=cursor, request_id=uuid4())
        await walk.until("work", ["Completed"] * slots)


@dataclass(frozen=True)
class Refusals:
    """The queue as it is, and how often it refused a call."""

    inner: Queue
    refused: list[str] = field(default_factory=list)

    async def receive(self, *args: Any, **options: Any) -> list[Delivery]:
        try:
            return await self.inner.receive(*args, **options)
        except TraceError as refusal:
            self.refused.append(refusal.message)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def counted(self, times: int) -> None:
        await until(lambda: len(self.refused) >= times, "enough calls were refused")


async def hung_up_on(place: Path, times: int) -> None:
    """A server there accepts so many connections, closes each, and goes away."""
    counted = asyncio.Semaphore(0)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        counted.release()

    server = await asyncio.start_unix_server(hang_up, place)
    try:
        async with asyncio.timeout(SECONDS):
            for _ in range(times):
                await counted.acquire()
    finally:
        server.close()
        place.unlink(missing_ok=True)  # noqa: ASYNC240 - a moment


async def test_a_queue_that_refuses_its_worker_ends_no_running_task(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    holds = Holds()
    async with walking(state_db, queue_db, tmp_path) as walk:
        queue = Refusals(walk.control.queue)
        works = replace(held_worker(walk, holds), queue=queue)
        worker = asyncio.create_task(works.work(stop := asyncio.Event()))
        await start_held_task(walk, holds)
        await out_of_order(
            queue_db, "receive_any(text[], integer[], integer, interval, integer, bigint[], timestamptz[])"
        )
        await queue.counted(2)  # the worker calls, is refused, and calls again
        assert not worker.done()
        await out_of_order(
            queue_db, "receive_any(text[], integer[], integer, interval, integer, bigint[], timestamptz[])", again=True
        )
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=2, request_id=uuid4())
        holds.let_go.set()
        await walk.until("work", ["Completed", "Completed"])
        stop.set()
        await worker
        assert holds.runs == 2


async def test_a_lost_heartbeat_is_repeated_before_the_lease_expires(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    """One beat fails, and the next one by the clock would come too late."""
    failed: list[float] = []

    async def drops_the_first(request: httpx.Request) -> None:
        del request
        if not failed:
            failed.append(time.monotonic())
            raise httpx.ReadError("the line is cut")

    holds = Holds()
    async with (
        walking(state_db, queue_db, tmp_path, beat_seconds=0.2) as walk,
        tasks_over(walk, Line(walk, "/heartbeat", drops_the_first)) as http,
        working(held_worker(walk, holds, http)),
    ):
        await start_held_task(walk, holds, interval=6, lease=11)
        heard = "SELECT status <> 'Running' OR last_heartbeat > started_at FROM tasks WHERE id = $1"

        async def reached() -> bool:
            return bool(await walk.control.pool.fetchval(heard, await held_task(walk)))

        await until(reached, "a heartbeat is stored")
        holds.let_go.set()
        await walk.until("work", ["Completed"])
        assert failed
        assert holds.runs == 1
        assert not holds.canceled.is_set()


async def test_a_task_that_fails_while_data_postgres_is_unreachable_is_reported_when_it_is_back(
    state_db: str, queue_db: str, data_db: str, tmp_path: Path
) -> None:
    """Reported at once, an outage of some minutes would use up every attempt."""
    address = parse_qs(urlsplit(data_db).query)
    socket = Path(address["host"][0]) / f".s.PGSQL.{address['port'][0]}"
    begun = threading.Event()

    def fails(task: TaskPayload) -> Outcome:
        del task
        begun.set()
        raise RuntimeError("the connection was closed in the middle")

    with tempfile.TemporaryDirectory(prefix="trace-") as nowhere:  # a short path: it is to hold a socket
        away = data_db.replace(quote(address["host"][0], safe=""), quote(nowhere, safe=""))
        assert away != data_db
        async with (
            walking(state_db, queue_db, tmp_path) as walk,
            working(walk.worker("w", fails, resources=Resources(data_dsn=away))),
        ):
            await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
            place = Path(nowhere) / socket.name
            await hung_up_on(place, 2)  # it connects, and connects again
            assert begun.is_set()
            assert await walk.statuses("work") == ["Running"]
            place.symlink_to(socket)
            await walk.until("work", ["Failed"])


async def test_running_sources_leave_every_slot_to_other_tasks(state_db: str, queue_db: str, tmp_path: Path) -> None:
    jobs = "".join(f"  - {{name: s{number}, operator: pull, source: {{kind: always_on}}}}\n" for number in range(3))
    with registered(pull=PULL):
        async with walking(state_db, queue_db, tmp_path) as walk:
            await deployed_and_active(
                walk.control, walk.org, f"name: feeds\ndefaults: {{runtime: ecs_platform}}\njobs:\n{jobs}"
            )
            sources = Sources(walk.control.objects, Resources())
            async with working(replace(walk.worker("w"), runner=sources, concurrency=1)):
                for number in range(3):
                    await walk.until(f"s{number}", ["Running"])
                await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
                await walk.until("work", ["Completed"])


async def test_a_stopping_worker_does_not_wait_for_the_dispatcher_to_claim_more(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    called = asyncio.Event()

    class Cut(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/task-claim-batch"):
                called.set()
            raise httpx.ConnectError("cut")

    async with walking(state_db, queue_db, tmp_path, line=lambda _: Cut()) as walk:
        worker = asyncio.create_task(walk.worker("w").work(stop := asyncio.Event()))
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=1, request_id=uuid4())
        async with asyncio.timeout(SECONDS):
            await called.wait()
            stop.set()
            await worker
        assert await walk.statuses("work") == ["Queued"]


async def test_a_stopping_worker_finishes_its_running_tasks(state_db: str, queue_db: str, tmp_path: Path) -> None:
    holds = Holds()
    async with walking(state_db, queue_db, tmp_path) as walk:
        worker = asyncio.create_task(held_worker(walk, holds).work(stop := asyncio.Event()))
        await start_held_task(walk, holds)
        stop.set()
        await trigger(walk.control, walk.org.id, "walk", "ask", cursor=2, request_id=uuid4())
        await walk.until("work", ["Running", "Queued"])
        assert not worker.done()
        holds.let_go.set()
        await worker
        assert await walk.statuses("work") == ["Completed", "Queued"], "and takes no more"


async def out_of_order(queue_db: str, function: str, *, again: bool = False) -> None:
    """Renames one of the queue's functions, so that calls fail; with `again`, renames it back."""
    name, _, arguments = function.partition("(")
    now, then = (f"{name}_away", name) if again else (name, f"{name}_away")
    connection = await asyncpg.connect(queue_db)
    try:
        await connection.execute(f"ALTER FUNCTION pgqueue.{now}({arguments} RENAME TO {then}")
    finally:
        await connection.close()
