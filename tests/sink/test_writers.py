"""Many writers and one table: attempts, organisations and replays, and always one row for one key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from tests.dispatcher.support import an_org
from tests.sink.rig import Rig, alert, lines
from trace_platform.dispatcher.list_dead_batches import list_dead_batches
from trace_platform.dispatcher.loops.clear_batches import ClearBatches
from trace_platform.dispatcher.replay_batch import replay_batch
from trace_platform.errors import Conflict, NotFound
from trace_platform.user_contracts import DeadBatchQuery

pytestmark = pytest.mark.anyio

PRODUCERS = 100


async def test_a_hundred_producers_with_the_same_keys_leave_one_row_for_each(rig: Rig) -> None:
    await rig.deploy()
    producer = await rig.producer()  # one attempt stands for a hundred writers: batches of one key from each
    async with rig.sinking(), rig.sinking():

        async def produce(number: int) -> UUID:
            own, shared = alert(f"own {number:03}", block_number=number), alert("shared", block_number=number)
            return await producer.publish([own, shared, alert("same")])

        published = await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        assert await rig.settled() == {"Committed": PRODUCERS}
    rows = {row["dedupe_key"]: row for row in await rig.rows()}
    assert len(rows) == PRODUCERS + 2
    assert rows["own 042"]["publish_id"] == published[42]
    seqs = {row["publish_id"]: row["seq"] for row in rig.data("SELECT * FROM trace_meta.applied_batches")}
    assert len(set(seqs.values())) == PRODUCERS
    last = max(published, key=lambda one: seqs[one])
    assert rows["shared"]["publish_id"] == last, "of one key, the batch that was applied last counts"
    events = await rig.fetch("SELECT cursor_value FROM events WHERE origin = 'sink' ORDER BY commit_number")
    assert sorted(row["cursor_value"] for row in events) == sorted(seqs.values())
    commits = await rig.fetch("SELECT number FROM commits WHERE dataset_uuid = $1 ORDER BY 1", producer.dataset)
    assert [row["number"] for row in commits] == list(range(1, PRODUCERS + 1))


async def test_a_second_attempt_that_sends_the_same_rows_adds_none(rig: Rig) -> None:
    await rig.deploy()
    first = await rig.producer()
    async with rig.sinking():
        await first.publish([alert("a"), alert("b")])
        await rig.settled()
        await first.complete("Failed", error_message="as planned")
        await rig.walk.control.pool.execute("UPDATE tasks SET next_retry_at = now() WHERE next_retry_at IS NOT NULL")
        rig.walk.control.leases.ring()
        second = await rig.claim()
        assert second.claimed.attempt == 2
        await second.publish([alert("a"), alert("b"), alert("c")])
        assert await rig.settled() == {"Committed": 2}
    assert [(row["dedupe_key"], row["producer_attempt"]) for row in await rig.rows()] == [("a", 1), ("b", 1), ("c", 2)]


async def test_one_key_in_two_organisations_is_two_rows_and_neither_sees_the_other(rig: Rig) -> None:
    other = await an_org(rig.walk.control.pool, "other")
    await rig.deploy()
    await rig.deploy(org=other)
    ours, theirs = await rig.producer(), await rig.producer(other)
    async with rig.sinking():
        await ours.publish([alert("a", block_number=1)])
        await theirs.publish([alert("a", block_number=2)])
        await rig.settled()
    (mine,), (its,) = await rig.rows(), await rig.rows(other)
    assert (mine["org_id"], mine["block_number"]) == (rig.walk.org.id, 1)
    assert (its["org_id"], its["block_number"]) == (other.id, 2)


async def test_a_dead_batch_is_shown_to_its_organisation_repaired_and_replayed(rig: Rig) -> None:
    control, org = rig.walk.control, rig.walk.org.id
    other = await an_org(control.pool, "other")
    await rig.deploy()
    producer = await rig.producer()
    async with rig.sinking():
        dead = await producer.publish([alert("a"), alert("b", block_number="x")], record_count=2)
        late = await producer.hand_over(str(producer.folder.object("late.jsonl")))
        good = await producer.publish([alert("c")])
        assert await rig.settled() == {"Committed": 1, "Dead": 2}
        found = await list_dead_batches(control.pool, org, DeadBatchQuery())
        assert {(one.publish_id, one.line, one.dataset) for one in found.batches} == {
            (dead, 2, "alert_events"),
            (late, None, "alert_events"),
        }
        assert (await list_dead_batches(control.pool, org, DeadBatchQuery(limit=1))).next == found.batches[0].publish_id
        assert not (await list_dead_batches(control.pool, other.id, DeadBatchQuery())).batches
        for publish, asker in ((good, org), (dead, other.id)):
            with pytest.raises((Conflict, NotFound)):
                await replay_batch(control, asker, publish, None)
        producer.put(lines([alert("late")]), "late.jsonl")
        await replay_batch(control, org, late, None)
        await replay_batch(control, org, dead, lines([alert("b", block_number=7)]))
        assert await rig.settled() == {"Committed": 3}
    assert [row["dedupe_key"] for row in await rig.rows()] == ["b", "c", "late"]
    assert len(await rig.fetch("SELECT FROM events WHERE origin = 'sink'")) == 3


async def test_batches_leave_the_store_after_their_commit_and_dead_ones_stay(rig: Rig) -> None:
    await rig.deploy()
    producer = await rig.producer()
    async with rig.sinking():
        await producer.publish([alert("a")], "good.jsonl")
        await producer.publish(b"?", "dead.jsonl")
        await rig.settled()
    objects = rig.walk.control.objects
    assert await ClearBatches(rig.walk.control, timedelta(hours=1)).once() == 0
    assert await ClearBatches(rig.walk.control, timedelta()).once() == 1
    assert await ClearBatches(rig.walk.control, timedelta()).once() == 0
    assert [one.name.name for one in objects.objects(producer.folder)] == ["dead.jsonl"]


async def test_a_message_that_comes_again_applies_nothing_and_a_sink_that_died_before_settling_is_repeated(
    rig: Rig,
) -> None:
    await rig.deploy()
    producer = await rig.producer()
    publish = await producer.publish([alert("a")])
    answer = await rig.walk.dispatcher.buffer_records([publish])
    writer = rig.writer()
    first = await asyncio.to_thread(writer.write, answer.records, answer.tables)
    second = await asyncio.to_thread(writer.write, answer.records, answer.tables)
    writer.close()
    assert first == second
    assert await rig.fetch("SELECT FROM events WHERE origin = 'sink'") == []
    async with rig.sinking():
        assert await rig.settled() == {"Committed": 1}
    assert len(await rig.rows()) == 1
