"""Poison of every kind while good batches flow: it is dead with line and reason, and affects no other batch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.support.faults.backends import POISON as POISON_NAME
from tests.support.faults.backends import FaultyObjects
from tests.support.metrics import counted
from tests.support.systems.sink import LIMITS, Producer, SinkSystem, alert, lines, parquet
from tests.support.waiting import SECONDS, until
from tracelake.dispatcher.maintenance.republish_batches import RepublishBatches
from tracelake.dispatcher.read_gauges import Gauges
from tracelake.domain.access.storage_locations import buffer_folder
from tracelake.errors import Forbidden
from tracelake.ports import Outgoing
from tracelake.sink.drain import FAILED_TRIES
from tracelake.sink.write import Writer

pytestmark = pytest.mark.anyio

POISON: dict[str, tuple[bytes, dict[str, Any], int | None, str]] = {
    "unknown field": (lines([alert("p1"), alert("p2", sevrity="x")]), {}, 2, "'sevrity'"),
    "wrong type": (lines([alert("p1", block_number="7")]), {}, 1, "'block_number'"),
    "malformed": (lines([alert("p1")]) + b'{"dedupe_key":', {}, 2, "JSON"),
    "other count": (lines([alert("p1")]), {"record_count": 2}, None, "2 rows"),
    "contradiction": (lines([alert("p1"), alert("p1", amount="2")]), {}, 2, "same key"),
    "long line": (lines([alert("p" * 5_000)]), {}, 1, "bytes"),
    "too large": (lines([alert(f"p{n}") for n in range(40_000)]), {}, None, "bytes"),
    "content type": (b"x", {"content_type": "text/csv"}, None, "text/csv"),
    "no Parquet": (b"PAR1", {"content_type": "application/vnd.apache.parquet"}, None, "cannot be read"),
    "a bomb": (
        parquet(pa.table({"dedupe_key": [f"{n}" + "p" * 1024 * 1024 for n in range(8)], "severity": ["x"] * 8})),
        {"content_type": "application/vnd.apache.parquet"},
        None,
        "unpacks to more than",
    ),
    "another's org": (lines([alert("p1", org_id="00000000-0000-0000-0000-000000000001")]), {}, 1, "'org_id'"),
    # Only Postgres finds this: JSON has no largest number, jsonb has. It fails the merge of all at first.
    "beyond numbers": (b'{"dedupe_key":"p1","severity":"x","payload":{"a":1e999999}}', {}, None, "Postgres"),
}


async def test_each_poison_is_dead_with_its_line_and_reason_and_every_good_batch_gets_in(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    published = {}
    for name, (body, more, _, _) in POISON.items():
        await producer.publish([alert(f"before {name}")])
        published[name] = await producer.publish(body, **more)
    gone = await producer.publish([alert("gone")], "gone.jsonl")
    system.walk.control.objects.delete([producer.folder.object("gone.jsonl")])
    await producer.publish([alert("last")])
    await system.walk.control.queue.publish("buffer", [Outgoing(b"no JSON"), Outgoing(b'{"kind":"buffer_batch"}')])
    async with system.sinking():
        assert await system.settled() == {"Committed": len(POISON) + 1, "Dead": len(POISON) + 1}
    for name, (_, _, line, said) in POISON.items():
        found, reason = await system.death(published[name])
        assert (found, said in reason) == (line, True), (name, found, reason)
    assert "not at the location" in (await system.death(gone))[1]
    await Gauges(
        system.walk.control.pool, system.walk.control.queue, system.walk.control.runtimes, system.walk.control.metrics
    ).refresh()
    shown = counted(system.walk.control.metrics, "trace_buffer_batches_dead")
    assert shown == len(POISON) + 1
    assert {row["dedupe_key"] for row in await system.rows()} == {"last", *(f"before {name}" for name in POISON)}
    assert system.data("SELECT count(*) AS n FROM pg_class WHERE relnamespace = 'staging'::regnamespace") == [{"n": 0}]


async def test_a_batch_in_anothers_folder_is_refused_by_the_api_and_by_the_sink(system: SinkSystem) -> None:
    await system.deploy()
    owner, thief = await system.producer(), await system.producer()
    secret = owner.put(lines([alert("secret")]))
    with pytest.raises(Forbidden, match="outside the folders that the token lets"):
        await thief.hand_over(str(secret))
    # Even a record that should not be there is not believed: neither another attempt's folder nor a way around.
    around = f"{thief.folder}{'x'}".replace("/1/x", "/10/x")
    dead = [
        await _forged(system, thief, uri) for uri in (str(secret), around, "file:///etc/passwd", f"{thief.folder}../x")
    ]
    async with system.sinking():
        await owner.hand_over(str(secret))
        assert await system.settled() == {"Committed": 1, "Dead": len(dead)}
    for publish in dead:
        assert "folder of the attempt" in (await system.death(publish))[1]
    assert [row["producer_task_id"] for row in await system.rows()] == [owner.claimed.task.task_id]


async def test_a_message_only_says_which_publish_it_is_about(system: SinkSystem) -> None:
    """Write access to the queue allows at most that a batch is checked again."""
    await system.deploy()
    producer = await system.producer()
    async with system.sinking():
        publish = await producer.publish([alert("a")])
        await system.settled()
        lie = (
            b'{"kind":"buffer_batch","publish_id":"%s","org_id":"00000000-0000-0000-0000-000000000001",'
            b'"batch_uri":"s3://trace-scratch/elsewhere/x"}' % str(publish).encode()
        )
        unknown = b'{"kind":"buffer_batch","publish_id":"00000000-0000-0000-0000-000000000009"}'
        await system.walk.control.queue.publish("buffer", [Outgoing(lie), Outgoing(unknown), Outgoing(lie)])
        while (depth := await system.walk.control.queue.depth("buffer")).ready or depth.in_flight:
            pass
    assert len(await system.rows()) == 1
    assert len(await system.fetch("SELECT FROM events WHERE origin = 'sink'")) == 1


async def test_an_undeclared_dataset_is_refused(system: SinkSystem) -> None:
    await system.deploy(ALONE)
    producer = await system.producer()
    async with system.sinking():
        publish = await _forged(system, producer, str(producer.put(lines([alert("a")]))))
        assert await system.settled() == {"Dead": 1}
    assert "not declared" in (await system.death(publish))[1]


async def test_the_store_being_away_kills_nothing(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    publish = await producer.publish([alert("a")])
    folder = system.folder / "objects"
    folder.rename(system.folder / "away")
    folder.write_text("a disk that is not mounted")
    async with system.sinking(system.writer(replace(LIMITS))) as sink:
        async with asyncio.timeout(SECONDS):
            while not counted(sink.metrics, "trace_sink_batches_total", outcome="Away"):
                await system.until("SELECT true")
        folder.unlink()
        (system.folder / "away").rename(folder)
        assert await system.settled() == {"Committed": 1}
    assert [row["publish_id"] for row in await system.rows()] == [publish]


async def test_an_unexpected_fault_is_retried_and_delays_and_kills_nothing_else(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    store = FaultyObjects(system.folder / "objects")
    store.root.mkdir(exist_ok=True)
    store.fails.touch()
    writer = Writer(lambda: system.spark, store, system.data_dsn, LIMITS)
    async with system.sinking(writer, groups=1) as sink:
        publish = await producer.publish([alert("a")], POISON_NAME)
        await until(
            lambda: counted(sink.metrics, "trace_sink_batches_total", outcome="Failed") >= FAILED_TRIES,
            "the batch has failed often enough",
        )
        await producer.publish([alert("b")])
        await system.until("SELECT count(*) = 1 FROM buffer_publishes WHERE status = 'Committed'")
        assert await system.fetch("SELECT status::text FROM buffer_publishes WHERE id = $1", publish) == [("Accepted",)]
        store.fails.unlink()
        await system.walk.control.pool.execute("UPDATE buffer_publishes SET sent_at = sent_at - interval '2 h'")
        assert (
            await RepublishBatches(
                system.walk.control.pool,
                system.walk.control.queue,
                system.walk.control.after_commit.outbox,
                timedelta(minutes=5),
            ).once()
            == 1
        )
        assert await system.settled() == {"Committed": 2}
    assert {row["dedupe_key"] for row in await system.rows()} == {"a", "b"}


async def _forged(system: SinkSystem, thief: Producer, uri: str) -> UUID:
    """A publish that the API would have refused."""
    task = thief.claimed.task
    (row,) = await system.fetch(
        "WITH made AS (INSERT INTO buffer_publishes"
        " (org_id, task_id, attempt, dataset_uuid, dataset_version, batch_uri, content_hash)"
        " VALUES ($1, $2, $3, $4, $5, $6, sha256('')) RETURNING id, org_id),"
        " entry AS (INSERT INTO outbox (org_id, kind, payload)"
        " SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM made)"
        " SELECT id FROM made",
        system.walk.org.id,
        task.task_id,
        task.attempt,
        thief.dataset,
        task.outputs[0].dataset_version,
        uri,
    )
    assert buffer_folder("trace-scratch", thief.dataset, task.task_id, task.attempt) == thief.folder
    return UUID(str(row["id"]))


ALONE = """
name: watch
jobs:
  - {name: ask, operator: noop, runtime: dispatcher, source: {kind: manual}}
  - name: detect
    operator: pull
    runtime: ecs_platform
    inputs: [{from: {job: ask}}]
"""
