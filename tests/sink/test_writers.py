"""Many writers and one table: attempts, organisations and replays, and always one row for one key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatcher.control import an_org
from tests.support.systems.sink import ALERTS, Producer, SinkSystem, alert, lines
from tests.support.verbs import replay_batch
from tests.support.waiting import until
from tracelake.data.buffered.merge_batches import Applied
from tracelake.dispatcher.buffers.dead_batches import list_dead_batches
from tracelake.dispatcher.maintenance.delete_applied_batches import DeleteAppliedBatches
from tracelake.dispatcher.maintenance.delete_orphan_files import DeleteOrphanFiles
from tracelake.dispatcher.maintenance.republish_batches import RepublishBatches
from tracelake.domain.access.object_names import Folder
from tracelake.errors import Conflict, Forbidden, LeaseLost, NotFound
from tracelake.wire.task.buffers import CommittedBatch, DeadBatch, SettleRequest
from tracelake.wire.user.datasets import DeadBatchQuery

pytestmark = pytest.mark.anyio

DETECTORS = ("detect", "detect_more")
TASKS_PER_DETECTOR = 50
PRODUCERS = len(DETECTORS) * TASKS_PER_DETECTOR
AT_ONCE = 8
"""Calls at once: there is one listener, and a call that waits too long is given up."""
RETRIED = 10
"""Of them, so many fail after they published, and a second attempt sends it all again."""
TWO_DETECTORS = ALERTS.replace(
    "  - name: after\n",
    """  - name: detect_more
    operator: pull
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
    outputs: [{dataset: alert_events}]
  - name: after
""",
)


async def test_a_hundred_producing_tasks_with_overlapping_keys_leave_one_row_for_each_key(system: SinkSystem) -> None:
    await system.deploy(TWO_DETECTORS)
    first = await system.producers(TASKS_PER_DETECTOR, DETECTORS)
    assert len({item.claimed.capability_token for item in first}) == len({item.folder for item in first}) == PRODUCERS
    number_of = {item.claimed.task.task_id: number for number, item in enumerate(first)}
    sent: dict[UUID, int] = {}
    turns = asyncio.Semaphore(AT_ONCE)

    async def produce(producer: Producer) -> None:
        number = number_of[producer.claimed.task.task_id]
        rows = [alert(key, block_number=number) for key in (f"own {number:03}", f"shared {number % 10}")]
        where = str(producer.put(lines([*rows, alert("same")])))
        async with turns:
            publish = await producer.hand_over(where)
            if number < RETRIED:
                assert await producer.hand_over(where) == publish, "a repeated call is answered as the first"
        sent[publish] = number

    async with system.sinking(), system.sinking():
        await asyncio.gather(*map(produce, first))
        second = await _second_attempts(system, first[:RETRIED])
        await asyncio.gather(*map(produce, second))
        with pytest.raises(LeaseLost):
            await first[0].publish([alert("late")])
        assert await system.settled() == {"Committed": PRODUCERS + RETRIED}
    rows = {row["dedupe_key"]: row for row in await system.rows()}
    assert set(rows) == {"same", *(f"shared {n}" for n in range(10)), *(f"own {n:03}" for n in range(PRODUCERS))}
    assert {rows[f"own {number:03}"]["producer_task_id"]: number for number in range(PRODUCERS)} == number_of
    seqs = {row["publish_id"]: row["seq"] for row in system.data("SELECT * FROM trace_meta.applied_batches")}
    for n in range(10):
        last = max((id_ for id_, number in sent.items() if number % 10 == n), key=seqs.__getitem__)
        assert rows[f"shared {n}"]["block_number"] == sent[last], "of one key, the batch that was applied last counts"
    await _assert_one_event_each(system, first[0].dataset, {id_: seqs[id_] for id_ in sent})


async def _second_attempts(system: SinkSystem, failed: Sequence[Producer]) -> list[Producer]:
    for item in failed:
        await item.complete("Failed", error_message="as planned")
    await system.walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
    system.walk.control.after_commit.leases.notify()
    second = await system.claim_all(len(failed), DETECTORS)
    assert {(item.claimed.task.task_id, item.claimed.attempt) for item in second} == {
        (item.claimed.task.task_id, 2) for item in failed
    }
    return second


async def _assert_one_event_each(system: SinkSystem, dataset: UUID, seqs: Mapping[UUID, int]) -> None:
    """One settlement, one commit, one event and one task downstream for each publish, and nothing else."""
    settled = await system.fetch("SELECT id, seq FROM buffer_publishes")
    assert {row["id"]: row["seq"] for row in settled} == dict(seqs)
    commits = await system.fetch("SELECT number, scope FROM commits WHERE dataset_uuid = $1 ORDER BY 1", dataset)
    assert [row["number"] for row in commits] == list(range(1, len(seqs) + 1))
    assert {row["scope"] for row in commits} == {f"publish:{seq}" for seq in seqs}
    events = await system.fetch("SELECT cursor_value FROM events WHERE origin = 'sink'")
    assert sorted(row["cursor_value"] for row in events) == sorted(seqs.values())
    (after,) = await system.fetch(
        "SELECT count(*) AS n FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'after'"
    )
    assert after["n"] == len(seqs)


async def test_a_second_attempt_that_sends_the_same_rows_adds_none(system: SinkSystem) -> None:
    await system.deploy()
    first = await system.producer()
    async with system.sinking():
        await first.publish([alert("a"), alert("b")])
        await system.settled()
        await first.complete("Failed", error_message="as planned")
        await system.walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
        system.walk.control.after_commit.leases.notify()
        second = await system.claim()
        assert second.claimed.attempt == 2
        await second.publish([alert("a"), alert("b"), alert("c")])
        assert await system.settled() == {"Committed": 2}
    assert [(row["dedupe_key"], row["producer_attempt"]) for row in await system.rows()] == [
        ("a", 1),
        ("b", 1),
        ("c", 2),
    ]


async def test_one_key_in_two_organisations_is_two_rows_and_neither_sees_the_other(system: SinkSystem) -> None:
    other = await an_org(system.walk.control.pool, "other")
    await system.deploy()
    await system.deploy(org=other)
    ours, theirs = await system.producer(), await system.producer(other)
    async with system.sinking():
        await ours.publish([alert("a", block_number=1)])
        await theirs.publish([alert("a", block_number=2)])
        await system.settled()
    (mine,), (its,) = await system.rows(), await system.rows(other)
    assert (mine["org_id"], mine["block_number"]) == (system.walk.org.id, 1)
    assert (its["org_id"], its["block_number"]) == (other.id, 2)


async def test_a_dead_batch_is_shown_to_its_organisation_repaired_and_replayed(system: SinkSystem) -> None:
    control, org = system.walk.control, system.walk.org.id
    other = await an_org(control.pool, "other")
    await system.deploy()
    producer = await system.producer()
    late = await producer.publish([alert("late")], "late.jsonl")
    control.objects.delete([producer.folder.object("late.jsonl")])
    async with system.sinking():
        dead = await producer.publish([alert("a"), alert("b", block_number="x")], record_count=2)
        good = await producer.publish([alert("c")])
        assert await system.settled() == {"Committed": 1, "Dead": 2}
        found = await list_dead_batches(control.pool, org, DeadBatchQuery())
        assert {(item.publish_id, item.line, item.dataset) for item in found.batches} == {
            (dead, 2, "alert_events"),
            (late, None, "alert_events"),
        }
        assert (await list_dead_batches(control.pool, org, DeadBatchQuery(limit=1))).next == found.batches[0].publish_id
        assert not (await list_dead_batches(control.pool, other.id, DeadBatchQuery())).batches
        for publish, org_id in ((good, org), (dead, other.id)):
            with pytest.raises((Conflict, NotFound)):
                await replay_batch(control, org_id, publish, None)
        producer.put(lines([alert("late")]), "late.jsonl")
        await replay_batch(control, org, late, None)
        await replay_batch(control, org, dead, lines([alert("b", block_number=7)]))
        assert await system.settled() == {"Committed": 3}
    assert [row["dedupe_key"] for row in await system.rows()] == ["b", "c", "late"]
    assert len(await system.fetch("SELECT FROM events WHERE origin = 'sink'")) == 3


async def test_batches_leave_the_store_after_their_commit_and_dead_ones_stay(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    async with system.sinking():
        await producer.publish([alert("a")], "good.jsonl")
        await producer.publish(b"?", "dead.jsonl")
        await system.settled()
    objects = system.walk.control.objects
    assert (
        await DeleteAppliedBatches(system.walk.control.pool, system.walk.control.objects, timedelta(hours=1)).once()
        == 0
    )
    assert await DeleteAppliedBatches(system.walk.control.pool, system.walk.control.objects, timedelta()).once() == 1
    assert await DeleteAppliedBatches(system.walk.control.pool, system.walk.control.objects, timedelta()).once() == 0
    assert [item.name.name for item in objects.objects(producer.folder)] == ["dead.jsonl"]


TWO = (
    ALERTS.replace("{dataset: alert_events}]\n", "{dataset: alert_events}, {dataset: copies}]\n", 1)
    + """
  copies:
    storage: postgres
    write_mode: buffered
    columns: {dedupe_key: text, severity: text}
    unique_key: [dedupe_key]
"""
)


def shared_folder(producer: Producer) -> Folder:
    task = producer.claimed.task
    return Folder.parse(f"s3://trace-scratch/buffers/{task.task_id}/{task.attempt}/")


async def test_a_batch_whose_path_names_no_dataset_goes_where_its_publish_says_and_stays_until_all_have_it(
    system: SinkSystem,
) -> None:
    await system.deploy(TWO)
    producer = await system.producer()
    body, control = lines([alert("a")]), system.walk.control
    name = shared_folder(producer).object("batch.jsonl")
    control.objects.put(name, body)
    newer: dict[str, Any] = {"dataset_uuid": None, "content_type": "application/jsonl", "batch_size_bytes": len(body)}
    first = await producer.hand_over(str(name), dedupe_scope="alert_events", **newer)
    assert await producer.hand_over(str(name), dedupe_scope="alert_events", **newer) == first
    dead = await producer.hand_over(str(name), dedupe_scope="copies", record_count=7, **newer)
    task = producer.claimed.task
    elsewhere = f"s3://trace-scratch/scratch/{system.walk.org.id}/{task.task_id}/{task.attempt}/batch.jsonl"
    with pytest.raises(Forbidden, match="outside the folders that the token lets"):
        await producer.hand_over(elsewhere, dedupe_scope="alert_events", **newer)
    async with system.sinking():
        assert await system.settled() == {"Committed": 1, "Dead": 1}
        assert [row["publish_id"] for row in await system.rows()] == [first]
        assert await DeleteAppliedBatches(control.pool, control.objects, timedelta()).once() == 0, (
            "a dead batch of it may be replayed"
        )
        await replay_batch(control, system.walk.org.id, dead, body)
        assert await system.settled() == {"Committed": 2}
    assert await DeleteAppliedBatches(control.pool, control.objects, timedelta()).once() == 2
    assert control.objects.head(name) is None


async def test_batches_that_were_never_published_leave_the_store_when_their_attempt_is_over(system: SinkSystem) -> None:
    control, org = system.walk.control, system.walk.org.id
    await system.deploy()
    lost, running = await system.producer(), await system.producer()
    running.put(b"not yet", "soon.jsonl")
    await lost.publish([alert("a")], "committed.jsonl")
    dead = await lost.publish(b"?", "dead.jsonl")
    async with system.sinking():
        await system.settled()
        await replay_batch(control, org, dead, b"still no rows")
        await system.settled()
    waiting = await lost.publish([alert("b")], "accepted.jsonl")
    for name in ("unpublished.jsonl", f"repaired-{uuid4()}-of-no-batch"):
        lost.put(b"left behind", name)
    being_put = f"repaired-{dead}-this-moment"
    lost.put(b"by a person", being_put)
    beside = shared_folder(lost)
    for name in ("published.jsonl", "unpublished.jsonl"):
        control.objects.put(beside.object(name), b"not rows")
    await lost.hand_over(str(beside.object("published.jsonl")))
    await lost.complete("Failed", error_message="as planned", retryable=False)
    assert await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once() == 0, (
        "it is too early"
    )
    await control.pool.execute("UPDATE task_attempts SET ended_at = ended_at - interval '2 hours'")
    while await DeleteOrphanFiles(control.pool, control.objects, control.places.scratch_bucket).once():
        pass
    left = {item.name.name for item in control.objects.objects(lost.folder)}
    (repaired,) = await system.fetch("SELECT repaired_uri FROM buffer_publishes WHERE id = $1", dead)
    repair = repaired["repaired_uri"].rpartition("/")[2]
    assert left == {"committed.jsonl", "dead.jsonl", "accepted.jsonl", repair, being_put}
    assert [item.name.name for item in control.objects.objects(beside)] == ["published.jsonl"]
    assert [item.name.name for item in control.objects.objects(running.folder)] == ["soon.jsonl"]
    async with system.sinking():
        assert await system.settled() == {"Committed": 2, "Dead": 2}
    assert (await system.rows())[1]["publish_id"] == waiting


@pytest.mark.parametrize("settles", [True, False])
async def test_a_batch_that_one_sink_refused_and_another_merged_is_committed_with_its_event(
    system: SinkSystem, settles: bool
) -> None:
    """The second sink settles what it merged, or dies before that."""
    await system.deploy()
    producer = await system.producer()
    publish = await producer.publish([alert("a")])
    dispatcher, control = system.walk.dispatcher, system.walk.control
    answer = await dispatcher.buffer_records([publish])
    writer = system.writer()
    (merged,) = await asyncio.to_thread(writer.write, answer.records, answer.tables)
    writer.close()
    assert isinstance(merged, Applied)
    refused = DeadBatch(publish_id=publish, reason="it saw something else", line=1)
    assert await dispatcher.settle_buffers(SettleRequest(dead=[refused])) == 1
    if settles:
        batch = CommittedBatch(publish_id=publish, seq=merged.seq, rows=merged.rows, bytes=merged.bytes)
        assert [await dispatcher.settle_buffers(SettleRequest(committed=[batch])) for _ in range(2)] == [1, 0]
        assert await dispatcher.settle_buffers(SettleRequest(dead=[refused])) == 0
    else:
        await control.pool.execute(
            "UPDATE buffer_publishes SET settled_at = settled_at - interval '1 h', sent_at = sent_at - interval '2 h'"
        )
        async with system.sinking():
            while await RepublishBatches(
                control.pool, control.queue, control.after_commit.outbox, timedelta(minutes=5)
            ).once():
                pass
            await system.until("SELECT status = 'Committed' FROM buffer_publishes")
    await system.walk.until("after", ["Completed"])
    assert len(await system.fetch("SELECT FROM commits WHERE scope = $1", f"publish:{publish}")) == 1
    assert len(await system.fetch("SELECT FROM events WHERE origin = 'sink'")) == 1
    assert [row["publish_id"] for row in await system.rows()] == [publish]


async def test_a_dead_batch_is_looked_up_once_more_and_stays_dead_if_it_was_not_merged(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    async with system.sinking():
        await producer.publish(b"?")
        assert await system.settled() == {"Dead": 1}
        control = system.walk.control
        await control.pool.execute(
            "UPDATE buffer_publishes SET settled_at = settled_at - interval '1 h', sent_at = sent_at - interval '2 h'"
        )
        assert [
            await RepublishBatches(
                control.pool, control.queue, control.after_commit.outbox, timedelta(minutes=5)
            ).once()
            for _ in range(2)
        ] == [1, 0]
        await system.walk.until_outbox_is_empty()

        async def taken() -> bool:
            depth = await control.queue.depth("buffer")
            return depth.ready + depth.in_flight == 0

        await until(taken, "the buffer queue is empty")
    assert await system.settled() == {"Dead": 1}


async def test_a_message_that_comes_again_applies_nothing_and_a_sink_that_died_before_settling_is_repeated(
    system: SinkSystem,
) -> None:
    await system.deploy()
    producer = await system.producer()
    publish = await producer.publish([alert("a")])
    answer = await system.walk.dispatcher.buffer_records([publish])
    writer = system.writer()
    first = await asyncio.to_thread(writer.write, answer.records, answer.tables)
    second = await asyncio.to_thread(writer.write, answer.records, answer.tables)
    writer.close()
    assert first == second
    assert await system.fetch("SELECT FROM events WHERE origin = 'sink'") == []
    async with system.sinking():
        assert await system.settled() == {"Committed": 1}
    assert len(await system.rows()) == 1
