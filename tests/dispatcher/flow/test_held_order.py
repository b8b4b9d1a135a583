"""What waits for a paused job is released in the order in which it was accepted, whichever way it became held."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.dispatcher.control import PULL, Org, an_org, control_for, deployed_and_active
from tests.support.dispatcher.job_chain import claimed, completion, drained
from tests.support.operators import registered
from tests.support.verbs import accept_events, pause_job, resume_job, trigger
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.flow.apply_pressure import ApplyPressure
from tracelake.settings import FlowSettings
from tracelake.store.identity import User
from tracelake.wire.task.outputs import EventBody, EventsRequest

pytestmark = pytest.mark.anyio

OPERATORS = {"pull": PULL}

READERS = ("one", "two", "three")
DAG = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: load, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: one, operator: pull, inputs: [{from: {job: load}}]}
  - {name: two, operator: pull, inputs: [{from: {job: load}}]}
  - {name: three, operator: pull, inputs: [{from: {job: load}}]}
"""
HELD = """
SELECT e.cursor_value FROM held_events h JOIN jobs j ON j.id = h.job_id JOIN events e ON e.id = h.event_id
 WHERE j.name = $1 ORDER BY h.seq
"""
QUEUED = """
SELECT (t.input_versions ->> 'cursor')::int FROM tasks t JOIN jobs j ON j.id = t.job_id
 WHERE j.name = $1 AND t.status = 'Queued' ORDER BY t.id
"""
LOAD = """
SELECT t.id, d.dataset_uuid, d.dataset_version
  FROM tasks t JOIN jobs j ON j.id = t.job_id
  JOIN dag_version_datasets d ON d.dag_version_id = j.dag_version_id AND d.dataset_uuid = j.output_datasets[1]
 WHERE j.name = 'load'
"""


async def cursors(control: Control, sql: str, job: str) -> list[int]:
    return [cursor for (cursor,) in await control.pool.fetch(sql, job)]


async def paused_readers(control: Control, org: Org) -> User:
    await deployed_and_active(control, org, DAG)
    user = User(org.user, org.id, "acme", None, "admin")
    for job in READERS:
        await pause_job(control, user, "shop", job)
    await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
    await drained(control)
    return user


async def released(control: Control) -> None:
    while await ApplyPressure(control.pool, control.after_commit, FlowSettings(release_queue_depth=1_000)).once():
        await drained(control)


async def test_events_of_one_completion_and_of_calls_before_it_keep_the_order_of_the_task(
    control: Control, org: Org
) -> None:
    """The ids of its events follow from their contents, and say nothing about the order."""
    user = await paused_readers(control, org)
    order = random.Random(7).sample(range(100), 60)  # noqa: S311 - an order, not a secret
    ((task, dataset, version),) = await control.pool.fetch(LOAD)
    events = [EventBody(dataset_uuid=dataset, dataset_version=version, cursor=cursor) for cursor in order]
    lease, claims = await claimed(control, task)
    fence: dict[str, Any] = {"task_id": lease.task.task_id, "attempt": lease.attempt, "lease_token": lease.lease_token}
    for call in (events[:20], events[20:40]):
        await accept_events(control, EventsRequest(events=call, **fence), claims)
    await control.completer()(completion(lease, events=events[40:]), claims)
    await drained(control)
    for job in READERS:
        assert await cursors(control, HELD, job) == order, job
        await resume_job(control, user, "shop", job)
    await released(control)
    for job in READERS:
        assert await cursors(control, QUEUED, job) == order, job


async def test_an_event_that_another_replica_routes_later_is_released_before_those_that_came_after_it(
    state_db: str, queue_db: str, tmp_path: Path
) -> None:
    with registered(pull=PULL):
        async with (
            control_for(state_db, queue_db, tmp_path) as control,
            control_for(state_db, queue_db, tmp_path, replica="two") as other,
        ):
            org = await an_org(control.pool)
            await deployed_and_active(control, org, DAG)
            user = User(org.user, org.id, "acme", None, "admin")
            await pause_job(control, user, "shop", "load")
            await trigger(control, org.id, "shop", "ask", cursor=1, request_id=uuid4())
            async with control.pool.acquire() as connection, connection.transaction():
                taken = "SELECT id FROM outbox WHERE status = 'Pending' AND kind = 'route_event' FOR UPDATE"
                assert len(await connection.fetch(taken)) == 1  # as a replica does that routes it now
                await trigger(control, org.id, "shop", "ask", cursor=2, request_id=uuid4())
                await drained(other)
                assert await cursors(control, HELD, "load") == [2]
            await drained(control)
            assert await cursors(control, HELD, "load") == [1, 2]
            await resume_job(control, user, "shop", "load")
            await released(control)
            assert await cursors(control, QUEUED, "load") == [1, 2]


BESIDE = """
name: shop
defaults: {runtime: ecs_platform}
jobs:
  - {name: ask, operator: pull, source: {kind: manual}}
  - {name: load, operator: pull, inputs: [{from: {job: ask}}]}
  - {name: slow, operator: pull, max_queue_depth: 2, inputs: [{from: {job: ask}}]}
"""
FILL = """
INSERT INTO tasks (org_id, job_id, dedupe_key, timeout_seconds, woken_at)
SELECT org_id, id, 'n' || n, 3600, now() FROM jobs, generate_series(1, $2::int) AS n WHERE name = $1
"""
EMPTY = """
UPDATE tasks t SET status = 'Canceled', completed_at = now(), cancel_reason = 'x'
  FROM jobs j WHERE j.id = t.job_id AND j.name = $1
"""


async def test_an_event_that_waits_behind_one_of_a_paused_source_does_not_overtake_it_when_that_is_paused_again(
    control: Control, org: Org
) -> None:
    """It came when the source was not paused, while those before it were not released yet."""

    async def a_pass() -> None:
        await ApplyPressure(control.pool, control.after_commit, FlowSettings(release_queue_depth=1)).once()
        await drained(control)

    async def ask(cursor: int) -> None:
        await trigger(control, org.id, "shop", "ask", cursor=cursor, request_id=uuid4())
        await drained(control)

    await deployed_and_active(control, org, BESIDE)
    await control.pool.execute(FILL, "load", 1)  # so that none of what is held is released
    await control.pool.execute(FILL, "slow", 2)
    await a_pass()
    await ask(1)
    await control.pool.execute(EMPTY, "slow")
    await a_pass()
    await ask(2)
    await a_pass()
    assert await cursors(control, QUEUED, "slow") == [1, 2], "so the source is paused again"
    assert await cursors(control, HELD, "load") == [1, 2]
    await control.pool.execute(EMPTY, "load")
    await released(control)
    assert await cursors(control, QUEUED, "load") == []
    await control.pool.execute(EMPTY, "slow")
    await released(control)
    assert await cursors(control, QUEUED, "load") == [1, 2]
