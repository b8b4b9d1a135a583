"""One row on its way: declared, published, in the table, in an event, and read by jobs that follow the dataset."""

from __future__ import annotations

import pytest

from tests.support.systems.sink import SinkSystem, alert
from tracelake.dispatcher.datasets.resolve_relations import user_relations
from tracelake.store.identity import User
from tracelake.wire.internal.queries import RelationRequest, RelationsRequest

pytestmark = pytest.mark.anyio


async def test_a_published_row_is_in_the_table_once_and_makes_one_task_downstream(system: SinkSystem) -> None:
    await system.deploy()
    producer = await system.producer()
    async with system.sinking():
        publish = await producer.publish(
            [alert("a", amount="7", payload={"tx": ["0x1"]}, seen_at="2026-01-02T03:04:05Z")]
        )
        assert await system.settled() == {"Committed": 1}
        await system.walk.until("after", ["Completed"])
        await system.settled()
    (row,) = await system.rows()
    task = producer.claimed.task
    assert (row["dedupe_key"], row["severity"], int(row["amount"]), row["payload"]) == ("a", "high", 7, {"tx": ["0x1"]})
    assert (row["org_id"], row["producer_task_id"], row["producer_attempt"]) == (system.walk.org.id, task.task_id, 1)
    assert row["publish_id"] == publish
    (event,) = await system.fetch("SELECT scope, commit_number FROM events WHERE origin = 'sink'")
    assert (event["scope"], event["commit_number"]) == (f"cursor:{row['publish_seq']}", 1)
    (commit,) = await system.fetch(
        "SELECT number, row_count, scope FROM commits WHERE dataset_uuid = $1", producer.dataset
    )
    assert tuple(commit) == (1, 1, f"publish:{publish}")
    assert (await system.walk.control.queue.depth("buffer")).in_flight == 0
    # A query of the table says as of which commit it was read.
    user = User(system.walk.org.user, system.walk.org.id, "acme", None, "admin")
    name = await system.walk.control.pool.fetchval("SELECT name FROM datasets WHERE id = $1", producer.dataset)
    (read,) = (
        await user_relations(system.walk.control.pool, user, RelationsRequest(tables=[RelationRequest(name=name)]))
    ).relations
    assert (read.hot, read.commit) == (True, 1)
