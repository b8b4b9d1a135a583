"""Notes of applied batches go when they are old and settled; a batch that comes again still changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.systems.sink import SinkSystem, alert
from tracelake.ports import Outgoing
from tracelake.sink.prune_applied import BATCH, prune_applied
from tracelake.store.db import open_pool

pytestmark = pytest.mark.anyio

NOTES = "SELECT publish_id FROM trace_meta.applied_batches"
OLD = "UPDATE trace_meta.applied_batches SET applied_at = now() - interval '11 days'"
UNKNOWN = """
    INSERT INTO trace_meta.applied_batches (publish_id, dataset_version, seq, row_count, byte_count, applied_at)
    SELECT gen_random_uuid(), dataset_version, nextval('trace_meta.publish_seq'), 1, 1, now() - interval '12 days'
      FROM trace_meta.applied_batches, generate_series(1, %s)"""


async def test_a_note_is_deleted_when_it_is_old_and_its_batch_is_settled_as_committed(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    async with system.sinking(), open_pool(system.data_dsn, name="test", max_size=1) as pool:
        publish = await producer.publish([alert("a")])
        assert await system.settled() == {"Committed": 1}
        before = await system.rows()
        assert await prune_applied(pool, system.walk.dispatcher, timedelta(days=10)) == 0
        # Before it lie more than a batch of notes that are not settled.
        await pool.execute(OLD)
        await pool.execute(UNKNOWN.replace("%s", str(BATCH + 1)))
        assert await prune_applied(pool, system.walk.dispatcher, timedelta(days=10)) == 1
        left = await pool.fetch(NOTES)
        assert len(left) == BATCH + 1
        assert publish not in {row["publish_id"] for row in left}
        again = b'{"kind": "buffer_batch", "publish_id": "%s"}' % str(publish).encode()
        await system.walk.control.queue.publish("buffer", [Outgoing(again)])
        await producer.publish([alert("b")])
        assert await system.settled() == {"Committed": 2}
    assert [row for row in await system.rows() if row["dedupe_key"] == "a"] == before
