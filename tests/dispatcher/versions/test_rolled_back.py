"""A transaction that Postgres ends for the sake of another is tried once more, and is then a 503 that names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from tests.support.systems.gateway import DAG, System
from tests.support.systems.gateway import system as gateway_system
from tests.support.waiting import until
from tracelake.store.queries import queries

pytestmark = pytest.mark.anyio
TRIGGER = "/v1/dags/shop/jobs/fetch/trigger"
ROLLED_BACK = ["40001", "40P01"]
"""A serialization failure and a deadlock."""

REFUSE_EVENTS = """
CREATE SEQUENCE refusals;
CREATE FUNCTION refuse_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('refusals') <= {times} THEN
        RAISE EXCEPTION 'rolled back by the test' USING ERRCODE = '{code}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_event BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse_event();
"""
"""A sequence is not rolled back: so many inserts are refused, whatever becomes of their transactions."""


@pytest.fixture
async def trace(anyio_backend: str, state_db: str, queue_db: str, tmp_path: Path) -> AsyncIterator[System]:
    del anyio_backend
    async with gateway_system(state_db, queue_db, tmp_path) as made:
        await made.deploy("shop", DAG)
        yield made


@pytest.mark.parametrize("code", ROLLED_BACK)
async def test_a_transaction_that_is_rolled_back_once_is_repeated_unseen(trace: System, code: str) -> None:
    await trace.control.pool.execute(REFUSE_EVENTS.format(code=code, times=1))
    answer = await _trigger(trace, uuid4())
    assert answer.status_code == 200, answer.text
    assert await _events(trace) == 1


@pytest.mark.parametrize("code", ROLLED_BACK)
async def test_a_transaction_that_is_rolled_back_again_is_a_503_that_may_be_repeated(trace: System, code: str) -> None:
    await trace.control.pool.execute(REFUSE_EVENTS.format(code=code, times=2))
    request = uuid4()
    refused = await _trigger(trace, request)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["retryable"]) == (503, "transaction_conflict", True)
    assert "nothing was stored" in error["message"]
    assert refused.headers["retry-after"] == "1"
    assert await _events(trace) == 0
    assert (await _trigger(trace, request)).json()["created"] is True
    assert await _events(trace) == 1


async def test_a_call_that_loses_a_deadlock_is_answered_as_if_there_had_been_none(trace: System, state_db: str) -> None:
    """The call holds its request's lock and waits for `events`; another session holds that and waits for the lock."""
    pool, request = trace.control.pool, uuid4()
    await pool.execute(f"ALTER DATABASE {await _name(pool)} SET deadlock_timeout = '10ms'")
    await pool.expire_connections()
    org = await pool.fetchval("SELECT id FROM orgs WHERE slug = 'acme'")
    first, other = await asyncpg.connect(state_db), await asyncpg.connect(state_db)
    try:
        await other.execute("SET deadlock_timeout = '1h'")  # it is the call that finds the deadlock, and is ended
        hold, deadlock = first.transaction(), other.transaction()
        await hold.start()
        await first.execute("LOCK TABLE dag_current_versions IN ACCESS EXCLUSIVE MODE")  # the call waits here first
        call = asyncio.create_task(_trigger(trace, request))
        await _until_waiting(other, 1)
        await deadlock.start()
        await other.execute("LOCK TABLE events IN EXCLUSIVE MODE")
        waits = asyncio.create_task(other.execute(queries("sources")["lock_request"], request, org))
        await _until_waiting(first, 2)
        await hold.rollback()
        await waits  # it has the lock now, and `events` still: the call's transaction was rolled back
        await deadlock.rollback()
        answer = await call
    finally:
        await first.close()
        await other.close()
    assert answer.status_code == 200, answer.text
    assert await _events(trace) == 1


async def _trigger(trace: System, request: UUID) -> httpx.Response:
    body = {"cursor": 1, "request_id": str(request)}
    return await trace.ask("acme|writer", "POST", TRIGGER, json=body)


async def _events(trace: System) -> Any:
    return await trace.control.pool.fetchval("SELECT count(*) FROM events")


async def _name(pool: asyncpg.Pool) -> Any:
    return await pool.fetchval("SELECT current_database()")


async def _until_waiting(connection: asyncpg.Connection, count: int) -> None:

    async def reached() -> bool:
        return bool(await connection.fetchval(WAITING) >= count)

    await until(reached, "other connections wait for a lock")


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
