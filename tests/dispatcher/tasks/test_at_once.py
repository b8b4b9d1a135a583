"""What two replicas do at once, stepped by the test: one transaction is held open until the other waits for it."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.job_chain import Chain, a_task, claimed, completion, deploy_chain
from tests.support.postgres import blocked_by, held
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.outbox.drain import give_slots
from tracelake.dispatcher.tasks.renew_lease import Beat
from tracelake.wire.task.lifecycle import (
    Claimed,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    NotClaimed,
    TaskProgress,
)

pytestmark = pytest.mark.anyio


async def waiting_task(control: Control, chain: Chain, priority: str) -> UUID:
    found: UUID = await control.pool.fetchval(
        "INSERT INTO tasks (org_id, job_id, timeout_seconds, priority)"
        " VALUES ($1, $2, 3600, $3::text::work_priority) RETURNING id",
        chain.org.id,
        chain.jobs["second"],
        priority,
    )
    return found


async def test_two_replicas_that_give_slots_at_once_keep_within_max_concurrency(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control, max_concurrency=1)
    first = await waiting_task(control, chain, "bulk")
    async with held(state_db, control.pool) as other:  # a replica that gives the one slot to the first task
        await other.connection.execute("SELECT FROM jobs WHERE id = $1 FOR NO KEY UPDATE", chain.jobs["second"])
        await other.connection.execute("UPDATE tasks SET woken_at = now() WHERE id = $1", first)
        await waiting_task(control, chain, "normal")  # more urgent, so this replica would choose it
        given = asyncio.create_task(give_slots(control.hot))
        await other.blocks()
    assert await given == 0
    woken = await control.pool.fetch("SELECT id FROM tasks WHERE woken_at IS NOT NULL")
    assert [row["id"] for row in woken] == [first]


async def test_two_batches_of_claims_for_the_same_tasks_do_not_deadlock(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    low, middle, high = [await a_task(control, chain) for _ in range(3)]  # ids rise

    def claims(*tasks: UUID) -> list[ClaimRequest]:
        return [ClaimRequest(task_id=task, worker_id="w") for task in tasks]

    async with held(state_db, control.pool) as holder:
        await holder.connection.execute("SELECT FROM tasks WHERE id = $1 FOR UPDATE", high)
        larger = asyncio.create_task(control.claimer().claim(claims(middle, high, low)))
        first = await holder.blocks()
        other = asyncio.create_task(control.claimer().claim(claims(low, middle)))
        await blocked_by(control.pool, first)
    assert [type(answer) for answer in await larger] == [Claimed] * 3
    assert [type(answer) for answer in await other] == [NotClaimed] * 2


async def test_two_batches_of_heartbeats_for_the_same_tasks_do_not_deadlock(control: Control, state_db: str) -> None:
    chain = await deploy_chain(control)
    beats = []
    for _ in range(3):
        task, claims = await claimed(control, await a_task(control, chain))
        said = HeartbeatRequest(task_id=task.task.task_id, attempt=task.attempt, lease_token=task.lease_token)
        beats.append(Beat(said, claims))
    low, middle, high = beats
    async with held(state_db, control.pool) as holder:
        await holder.connection.execute("SELECT FROM tasks WHERE id = $1 FOR UPDATE", high.request.task_id)
        larger = asyncio.create_task(control.renewer().renew([middle, high, low]))
        first = await holder.blocks()
        other = asyncio.create_task(control.renewer().renew([low, middle]))
        await blocked_by(control.pool, first)
    assert [type(answer) for answer in [*await larger, *await other]] == [HeartbeatAnswer] * 5


async def a_reader(control: Control, chain: Chain, job: str, read: str) -> UUID:
    """A task made by an event with a cursor."""
    task = await a_task(control, chain, job)
    dataset, version = str(chain.datasets[read]), str(chain.versions[read])
    trigger = {"dataset_uuid": dataset, "dataset_version": version, "cursor": 7}
    await control.pool.execute("UPDATE tasks SET input_versions = $2 WHERE id = $1", task, trigger)
    return task


async def test_completions_record_what_a_batch_processed_in_the_order_of_the_keys(control: Control) -> None:
    chain = await deploy_chain(control)
    completer, batch = control.completer(), []
    for job in chain.jobs:
        for read in chain.datasets:
            run, claims = await claimed(control, await a_reader(control, chain, job, read))
            batch.append((completion(run), claims))
    assert not [answer for answer in await completer.several(batch) if isinstance(answer, BaseException)]
    # Rows of one statement lie in the order in which they were written, and so locked.
    written = await control.pool.fetch(
        "SELECT lineage_id, dataset_version, partition_key FROM processed_inputs ORDER BY ctid"
    )
    assert len(written) == len(batch)
    assert written == sorted(written, key=tuple)


async def test_a_batch_of_completions_and_one_by_itself_lock_inputs_and_state_in_the_same_order(
    control: Control, state_db: str
) -> None:
    chain, completer = await deploy_chain(control), control.completer()
    rows = await control.pool.fetch("SELECT name, lineage_id FROM jobs WHERE name <> 'first' ORDER BY lineage_id")
    (low, _), (high, lineage) = rows
    runs = [await claimed(control, await a_reader(control, chain, job, "first")) for job in (low, high, low)]
    (of_low, its), (of_high, others), (alone, own) = runs
    await control.pool.execute(
        "INSERT INTO processed_inputs (lineage_id, dataset_version, partition_key, read_at, task_id)"
        " VALUES ($1, $2, '', now(), uuidv7())",
        lineage,
        chain.versions["first"],
    )
    async with held(state_db, control.pool) as holder:
        await holder.connection.execute("SELECT FROM processed_inputs FOR UPDATE")
        several = [
            (completion(of_low, state={"at": 1}, events=[chain.event(low, cursor=1)]), its),
            (completion(of_high), others),
        ]
        batch = asyncio.create_task(completer.several(several))
        first = await holder.blocks()  # it has written the row of the one job, and waits for that of the other
        progress = TaskProgress(message="done")  # so that it is completed by itself
        single = asyncio.create_task(completer(completion(alone, state={"at": 2}, progress=progress), own))
        await blocked_by(control.pool, first)
    answers = [await single, *await batch]
    assert [getattr(answer, "status", answer) for answer in answers] == ["Completed"] * 3
    # Had the batch been rolled back by a deadlock, its event would be routed later, by the drain.
    assert await control.pool.fetchval("SELECT status::text FROM outbox WHERE kind = 'route_event'") == "Done"


async def test_what_is_wrong_with_one_outbox_row_is_not_said_of_another_that_is_being_routed(
    control: Control, state_db: str
) -> None:
    chain = await deploy_chain(control)
    insert_entry = "INSERT INTO outbox (org_id, kind, payload) VALUES ($1, 'route_event', $2) RETURNING id"
    good = await control.pool.fetchval(insert_entry, chain.org.id, {"event_id": str(uuid4())})
    bad = await control.pool.fetchval(insert_entry, chain.org.id, {"event_id": "not a uuid"})
    async with held(state_db, control.pool) as replica:  # which gives up in the end
        await replica.connection.execute("SELECT FROM outbox WHERE id = $1 FOR UPDATE", good)
        routing = asyncio.create_task(control.router().route("route_event"))
        await blocked_by(control.pool, replica.connection.get_server_pid(), unless=routing)
    await routing
    rows = await control.pool.fetch("SELECT id, attempts, last_error FROM outbox ORDER BY id")
    assert [(row["id"], row["attempts"], bool(row["last_error"])) for row in rows] == [(good, 0, False), (bad, 1, True)]
