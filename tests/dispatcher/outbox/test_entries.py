"""Entries of the outbox are published once each, fail one by one, and are pruned when they are old."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from uuid import uuid4

import pytest

from tests.support.dispatcher.job_chain import (
    a_task,
    claimed,
    completion,
    deploy_chain,
    drained,
    tasks_of,
)
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.route import BATCH
from tracelake.dispatcher.maintenance.prune import BATCH as PRUNE_BATCH
from tracelake.dispatcher.maintenance.prune import PruneOutbox
from tracelake.dispatcher.replicas import host_of, take_over

pytestmark = pytest.mark.anyio


async def test_an_outbox_entry_that_cannot_be_published_fails_with_a_reason_and_blocks_no_other(
    control: Control,
) -> None:
    chain = await deploy_chain(control)
    await control.pool.execute(
        "INSERT INTO outbox (org_id, kind, payload) VALUES ($1, 'route_event', $2), ($1, 'route_event', $3)",
        chain.org.id,
        {"event_id": str(uuid4())},
        {"event_id": "not a uuid"},
    )
    task, claims = await claimed(control, await a_task(control, chain))
    await control.completer()(completion(task, events=[chain.event("first", cursor=1)]), claims)
    await drained(control)
    assert len(await tasks_of(control, chain, "second")) == 1
    dead = await control.pool.fetch("SELECT last_error FROM outbox WHERE status = 'Failed'")
    assert [row["last_error"] for row in dead] == ["there is no such event"]
    put_off = await control.pool.fetchval("SELECT last_error FROM outbox WHERE status = 'Pending'")
    assert "uuid" in put_off


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("enqueue_task", {"task_id": str(uuid4())}),
        ("enqueue_task", {"task_id": 7, "runtime": "dispatcher"}),
        ("publish_buffer", {"publish_id": "not a uuid"}),
        ("publish_buffer", {"publish_id": str(uuid4())}),
    ],
)
async def test_an_unreadable_outbox_entry_fails_and_the_others_are_published(
    control: Control, kind: str, payload: dict[str, object]
) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    insert_entry = "INSERT INTO outbox (org_id, kind, payload) VALUES ($1, $2::text::outbox_kind, $3)"
    await control.pool.execute(insert_entry, chain.org.id, kind, payload)
    await control.pool.execute(
        insert_entry, chain.org.id, "enqueue_task", {"task_id": str(task), "runtime": "ecs_platform"}
    )
    await drained(control)
    (delivery,) = await control.queue.receive("tasks-ecs_platform", max_messages=10, visibility=timedelta(minutes=1))
    assert str(task).encode() in delivery.body
    rows = await control.pool.fetch("SELECT status::text, last_error FROM outbox ORDER BY id")
    assert [row["status"] for row in rows] == ["Failed", "Done"]
    assert "cannot be read" in rows[0]["last_error"]


async def test_outbox_entries_of_a_dead_replica_are_taken_again(control: Control) -> None:
    chain = await deploy_chain(control)
    task = await a_task(control, chain)
    await control.pool.execute(
        "INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)"
        " VALUES ($1, 'enqueue_task', $2, 'Processing', 'the dead', now() - interval '1 s', 1)",
        chain.org.id,
        {"task_id": str(task), "runtime": "ecs_platform"},
    )
    await drained(control)
    (delivery,) = await control.queue.receive("tasks-ecs_platform", max_messages=10, visibility=timedelta(minutes=1))
    assert str(task).encode() in delivery.body


async def test_more_events_than_fit_into_a_batch_are_routed_and_woken_in_one_go(control: Control) -> None:
    chain = await deploy_chain(control)
    many = 2 * BATCH + 3
    await control.pool.execute(
        "WITH accepted AS ("
        " INSERT INTO events"
        " (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)"
        " SELECT $1, 'manual', 'cursor', gen_random_uuid(), $2, $3, 'cursor:' || n, n"
        " FROM generate_series(1, $4::int) n RETURNING id)"
        " INSERT INTO outbox (org_id, kind, payload)"
        " SELECT $1, 'route_event', jsonb_build_object('event_id', id) FROM accepted",
        chain.org.id,
        chain.datasets["first"],
        chain.versions["first"],
        many,
    )
    assert await control.drain().once() == many
    assert len(await tasks_of(control, chain, "second")) == many
    assert (await control.queue.depth("tasks-ecs_platform")).ready == many
    left = await control.pool.fetchval("SELECT count(*) FROM outbox WHERE status <> 'Done'")
    assert left == 0


async def test_outbox_entries_of_a_dead_process_on_this_machine_are_taken_at_once(control: Control) -> None:
    chain = await deploy_chain(control)
    tasks = [await a_task(control, chain) for _ in range(2)]
    dead, alive, host = await asyncio.create_subprocess_exec("true"), os.getppid(), host_of(control.replica)
    await dead.wait()
    for task, taker in zip(tasks, (f"{host}:{dead.pid}", f"{host}:{alive}"), strict=True):
        await control.pool.execute(
            "INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)"
            " VALUES ($1, 'enqueue_task', $2, 'Processing', $3, now() + interval '1 h', 1)",
            chain.org.id,
            {"task_id": str(task), "runtime": "ecs_platform"},
            taker,
        )
    assert await take_over(control.pool, control.replica) == 1
    await drained(control)
    (delivery,) = await control.queue.receive("tasks-ecs_platform", max_messages=10, visibility=timedelta(minutes=1))
    assert str(tasks[0]).encode() in delivery.body


async def test_outbox_entries_published_long_ago_are_pruned_and_no_others(control: Control) -> None:
    org = uuid4()
    stored = """
        INSERT INTO outbox (org_id, kind, status, payload, attempts, processed_at, last_error)
        SELECT $1, 'enqueue_task', status::outbox_status, '{}', 1, now() - age * interval '1 day',
               CASE WHEN status = 'Failed' THEN 'why' END
          FROM (VALUES (1, 'Done', 9), (2, 'Failed', 9), (3, 'Pending', NULL), (4, 'Done', 8), (5, 'Done', 1))
               AS v (n, status, age)
         ORDER BY n RETURNING id"""
    ids = [row["id"] for row in await control.pool.fetch(stored, org)]
    prune = PruneOutbox(control.hot, timedelta(days=7))
    assert [await prune.once(), await prune.once()] == [2, 0]
    left = await control.pool.fetch("SELECT id FROM outbox WHERE org_id = $1 ORDER BY id", org)
    assert [row["id"] for row in left] == [ids[1], ids[2], ids[4]]
    await control.pool.execute("UPDATE outbox SET processed_at = now() - interval '8 days' WHERE id = $1", ids[4])
    assert await prune.once() == 1


OLD_ENTRIES = """
    INSERT INTO outbox (org_id, kind, status, payload, attempts, created_at, processed_at)
    SELECT $1, 'enqueue_task', (CASE WHEN $3::int IS NULL THEN 'Pending' ELSE 'Done' END)::outbox_status, '{}', 1,
           now() - interval '9 days', now() - $3::int * interval '1 day'
      FROM generate_series(1, $2::int) RETURNING id"""


async def test_an_outbox_entry_published_later_than_one_after_it_is_pruned_in_its_turn(control: Control) -> None:
    late = await control.pool.fetchval(OLD_ENTRIES, uuid4(), 1, 1)
    await control.pool.execute(OLD_ENTRIES, uuid4(), PRUNE_BATCH, 8)
    prune = PruneOutbox(control.hot, timedelta(days=7))
    assert [await prune.once() for _ in range(2)] == [PRUNE_BATCH - 1, 1]
    await control.pool.execute("UPDATE outbox SET processed_at = now() - interval '8 days' WHERE id = $1", late)
    assert [await prune.once() for _ in range(2)] == [1, 0]
    assert await control.pool.fetchval("SELECT count(*) FROM outbox") == 0


async def test_pending_outbox_entries_do_not_stop_the_pruning_of_old_ones_behind_them(control: Control) -> None:
    await control.pool.execute(OLD_ENTRIES, uuid4(), PRUNE_BATCH, None)
    old = await control.pool.fetchval(OLD_ENTRIES, uuid4(), 1, 8)
    prune = PruneOutbox(control.hot, timedelta(days=7))
    assert [await prune.once() for _ in range(3)] == [0, 1, 0]
    assert await control.pool.fetchval("SELECT count(*) FROM outbox WHERE id = $1", old) == 0
    assert await control.pool.fetchval("SELECT count(*) FROM outbox") == PRUNE_BATCH
