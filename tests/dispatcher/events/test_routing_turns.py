"""Datasets take turns when more events wait than are routed in a batch; those of one dataset keep their order."""

from __future__ import annotations

import pytest

from tests.support.dispatcher.job_chain import Chain, deploy_chain
from tracelake.dispatcher.control import Control
from tracelake.dispatcher.events.route import BATCH, TURN

pytestmark = pytest.mark.anyio

FLOOD = 3 * BATCH
STORE = """
WITH accepted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)
    SELECT $1, 'manual', 'cursor', uuidv7(), $2, $3, 'cursor:' || n, n FROM generate_series($4::int, $5::int) n
    RETURNING id, org_id, dataset_uuid
)
INSERT INTO outbox (org_id, kind, payload, turn_of)
SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM accepted
"""
BEFORE = """
SELECT count(*)
  FROM tasks t JOIN events e ON e.id = t.event_id,
       (SELECT min(t.created_at) AS at FROM tasks t JOIN events e ON e.id = t.event_id WHERE e.dataset_uuid = $2) first
 WHERE e.dataset_uuid = $1 AND t.created_at < first.at
"""
LATER_THAN_A_FOLLOWER = """
SELECT count(*) FROM (
    SELECT t.created_at, max(t.created_at) OVER (ORDER BY e.cursor_value ROWS UNBOUNDED PRECEDING) AS latest
      FROM tasks t JOIN events e ON e.id = t.event_id WHERE e.dataset_uuid = $1) ordered
 WHERE created_at < latest
"""


async def store(control: Control, chain: Chain, job: str, first: int, last: int) -> None:
    generation = chain.datasets[job], chain.versions[job]
    await control.pool.execute(STORE, chain.org.id, *generation, first, last)


async def test_an_event_does_not_wait_for_a_flood_of_another_organisation(control: Control) -> None:
    many, few = await deploy_chain(control), await deploy_chain(control, slug="few")
    await store(control, many, "first", 1, FLOOD)
    await store(control, few, "first", 1, 1)
    assert await control.drain().once() == FLOOD + 1
    flood, event = many.datasets["first"], few.datasets["first"]
    assert await control.pool.fetchval(BEFORE, flood, event) <= BATCH + TURN
    assert await control.pool.fetchval(LATER_THAN_A_FOLLOWER, flood) == 0


async def test_an_event_does_not_wait_for_a_flood_of_another_dataset_of_its_organisation(control: Control) -> None:
    chain = await deploy_chain(control)
    await store(control, chain, "first", 1, FLOOD)
    await store(control, chain, "second", 1, 1)
    assert await control.drain().once() == FLOOD + 1
    flood, event = chain.datasets["first"], chain.datasets["second"]
    assert await control.pool.fetchval(BEFORE, flood, event) <= BATCH + TURN
