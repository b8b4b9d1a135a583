"""Connections to the state database are few: no code waits for a second one or forever, and a stuck pool ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from tests.support.dispatcher.control import control_for
from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain
from tests.support.dispatcher.staged_files import staged
from tests.support.one_connection import SecondConnection
from tests.support.systems.processes import System, until_ready, worker_client
from tests.support.verbs import trigger
from tests.support.waiting import until
from tracelake.capability.claims import Claims
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events import trigger as trigger_verb
from tracelake.errors import NoConnection
from tracelake.runtime.coalesce import Coalesced
from tracelake.store.jobs import JobCache, StoredJob
from tracelake.store.pool import BoundedPool
from tracelake.store.queries import Connection
from tracelake.wire.task.outputs import CompleteRequest

pytestmark = pytest.mark.anyio
CALLERS = 20


@pytest.fixture
async def control(anyio_backend: str, state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[Control]:
    """With one connection."""
    del anyio_backend
    async with control_for(state_db, queue_db, tmp_path, pool_size=1) as made:
        yield made


def cold(control: Control) -> Control:
    """As a Dispatcher that has just started: it knows no job."""
    return replace(control, jobs=JobCache(control.pool))


async def test_many_triggers_at_once_need_one_connection(control: Control) -> None:
    chain = await deploy_chain(control)
    fresh = cold(control)
    calls = (trigger(fresh, chain.org.id, "chain", "first", cursor=n, request_id=uuid4()) for n in range(CALLERS))
    done = await asyncio.gather(*calls)
    assert all(outcome.created for outcome in done)
    assert await control.pool.fetchval("SELECT count(*) FROM events") == CALLERS


@pytest.mark.parametrize("status", ["Completed", "Failed", "Canceled"])
async def test_many_completions_at_once_need_one_connection(control: Control, status: str) -> None:
    chain = await deploy_chain(control)
    complete = [await _completion(control, chain, status) for _ in range(3)]
    fresh = cold(control).completer()
    answers = await asyncio.gather(*(fresh(*item) for item in complete))
    assert {answer.status for answer in answers} == {status}


async def _completion(control: Control, chain: Chain, status: str) -> tuple[CompleteRequest, Claims]:
    task, claims = await claimed(control, await a_task(control, chain))
    if status == "Completed":
        return completion(task, outputs=staged(control.objects, task, (0, 99))), claims
    return completion(task, status=status, retryable=True), claims


async def test_code_that_acquires_a_second_connection_is_found(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await deploy_chain(control)
    original = trigger_verb._manual_source

    async def takes_another(connection: Connection, jobs: JobCache, *more: Any) -> StoredJob:
        await jobs.get(chain.jobs["first"])
        return await original(connection, jobs, *more)

    monkeypatch.setattr(trigger_verb, "_manual_source", takes_another)
    with pytest.raises(SecondConnection, match=r"store/jobs\.py:\d+ acquires .* .*/trigger\.py:\d+"):
        await trigger(cold(control), chain.org.id, "chain", "first", cursor=1, request_id=uuid4())


@pytest.mark.parametrize("how", ["gather", "group", "batch"])
async def test_code_that_waits_for_another_task_which_acquires_a_second_connection_is_found(
    control: Control, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    chain = await deploy_chain(control)
    original = trigger_verb._manual_source

    async def waits_for_another(connection: Connection, jobs: JobCache, *more: Any) -> StoredJob:
        async def answered(calls: Sequence[UUID]) -> list[StoredJob]:
            return [await jobs.get(job) for job in calls]

        if how == "gather":
            await asyncio.gather(answered([chain.jobs["first"]]))
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(answered([chain.jobs["first"]]))
        else:
            await batches(answered)(chain.jobs["first"])
        return await original(connection, jobs, *more)

    def batches(run: Callable[[Sequence[UUID]], Awaitable[list[StoredJob]]]) -> Coalesced[UUID, StoredJob]:
        return contextvars.Context().run(lambda: Coalesced(run, key=lambda job: job, verb="test"))

    monkeypatch.setattr(trigger_verb, "_manual_source", waits_for_another)
    with pytest.raises((SecondConnection, ExceptionGroup)) as found:
        await trigger(cold(control), chain.org.id, "chain", "first", cursor=1, request_id=uuid4())
    assert found.group_contains(SecondConnection) if how == "group" else found.type is SecondConnection


async def test_a_task_may_acquire_a_connection_once_that_of_its_starter_is_released(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, released = await deploy_chain(control), asyncio.Event()
    original, started = trigger_verb._manual_source, []

    async def later(jobs: JobCache) -> StoredJob:
        await released.wait()
        return await jobs.get(chain.jobs["first"])

    async def starts_another(connection: Connection, jobs: JobCache, *more: Any) -> StoredJob:
        started.append(asyncio.create_task(later(jobs)))
        return await original(connection, jobs, *more)

    monkeypatch.setattr(trigger_verb, "_manual_source", starts_another)
    await trigger(cold(control), chain.org.id, "chain", "first", cursor=1, request_id=uuid4())
    released.set()
    assert (await started[0]).id == chain.jobs["first"]


async def test_waiting_for_a_connection_ends_with_a_typed_refusal_and_then_goes_on(control: Control) -> None:
    async with control.pool.acquire():
        with pytest.raises(NoConnection, match="all 1 connections of pool 'test one' are in use"):
            await control.pool.acquire(timeout=0.01)
    assert await control.pool.fetchval("SELECT 1") == 1


async def test_a_dispatcher_whose_pool_is_stuck_refuses_with_503_and_then_ends(system: System, tmp_path: Path) -> None:
    sign = tmp_path / "hold"
    child = system.dispatcher(hold=sign, pool_max=2, acquire_seconds=0.1, stuck_seconds=8.0)
    async with worker_client(system) as http:
        await until_ready(http)
        sign.touch()
        refused = await _first_refusal(http)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "no_connection"
        assert refused.json()["error"]["retryable"] is True
        assert await child.ended()
    assert "is stuck" in child.said()
    again = system.dispatcher()  # as its supervisor would
    async with worker_client(system) as http:
        await until_ready(http)
    await again.kill()


async def test_a_dispatcher_whose_database_is_away_does_not_end_for_it(control: Control) -> None:
    """The check raises when the server cannot be reached."""
    assert isinstance(control.pool, BoundedPool)
    async with control.pool.acquire():
        with pytest.raises(NoConnection):
            await control.pool.acquire(timeout=0.01)
        with pytest.raises(OSError):  # noqa: PT011 - whatever the kernel says of a closed port
            await control.pool.is_stuck("postgresql://user@127.0.0.1:1/none", 0.0)


async def test_a_pool_that_lost_a_connection_still_knows_that_it_is_stuck(control: Control, state_db: str) -> None:
    assert isinstance(control.pool, BoundedPool)
    lost = asyncio.Event()
    cut = await control.pool.acquire()
    cut.add_termination_listener(lambda *_: lost.set())
    server = await asyncpg.connect(state_db)
    await server.execute("SELECT pg_terminate_backend($1)", cut.get_server_pid())
    await server.close()
    await lost.wait()  # asyncpg has taken it back; its holder has not released it
    async with control.pool.acquire():
        with pytest.raises(NoConnection):
            await control.pool.acquire(timeout=0.01)
        assert await control.pool.is_stuck(state_db, 0.0)
    await control.pool.release(cut)


async def _first_refusal(http: httpx.AsyncClient) -> httpx.Response:
    async def refused() -> httpx.Response | None:
        answer = await http.get("/internal/v1/dags")
        return None if answer.is_success else answer

    return await until(refused, "a call is refused")
