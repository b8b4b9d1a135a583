"""What must be true of the history after any fault, read from what is stored and never from what the code believes.

Each entry is a sentence and a statement that finds what breaks it. `assert_kept` runs when the queues have drained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import asyncpg

GUARANTEES: Final[Mapping[str, str]] = {
    "every event gave exactly one task per dependent job": """
        SELECT e.scope, j.name, count(t.id)
          FROM events e
          JOIN job_inputs i ON i.dataset_uuid = e.dataset_uuid AND i.live AND i.triggers
          JOIN jobs j ON j.id = i.job_id
          -- Published by two producers, the same part of the same generation is one unit of work.
          JOIN events same ON same.dataset_uuid = e.dataset_uuid AND same.dataset_version = e.dataset_version
               AND same.scope = e.scope AND same.commit_number IS NOT DISTINCT FROM e.commit_number
          LEFT JOIN tasks t ON t.job_id = j.id AND t.event_id = same.id
         WHERE e.disposition = 'Route'
         GROUP BY e.id, j.id HAVING count(t.id) <> 1""",
    "every invalidation gave exactly one task per dependent job": """
        SELECT v.id, j.name, count(t.id)
          FROM data_invalidations v
          JOIN job_inputs i ON i.dataset_uuid = v.dataset_uuid AND i.live AND i.triggers
          JOIN jobs j ON j.id = i.job_id
          LEFT JOIN tasks t ON t.job_id = j.id AND t.invalidation_id = v.id
         WHERE v.disposition = 'Route'
         GROUP BY v.id, j.id HAVING count(t.id) <> 1""",
    "every reader did its share of every invalidation": """
        SELECT s.invalidation_id, t.status FROM data_invalidation_jobs s JOIN tasks t ON t.id = s.task_id
         WHERE (t.status = 'Completed') <> (s.processed_at IS NOT NULL)""",
    "events and invalidations were routed": """
        SELECT id FROM events WHERE disposition = 'Route' AND routed_at IS NULL
        UNION ALL SELECT id FROM data_invalidations WHERE disposition = 'Route' AND routed_at IS NULL""",
    "a task completes once": """
        SELECT task_id FROM task_attempts WHERE outcome = 'Completed' GROUP BY 1 HAVING count(*) > 1
        UNION ALL
        SELECT t.id FROM tasks t LEFT JOIN task_attempts a ON a.task_id = t.id AND a.attempt = t.attempt
         WHERE t.status = 'Completed' AND a.outcome IS DISTINCT FROM 'Completed'""",
    "no stale attempt committed": """
        SELECT c.task_id, c.attempt FROM commits c
          LEFT JOIN task_attempts a ON a.task_id = c.task_id AND a.attempt = c.attempt
         WHERE a.outcome IS DISTINCT FROM 'Completed'""",
    "an attempt begins only when the one before it has ended": """
        SELECT a.task_id, a.attempt FROM task_attempts a
          JOIN task_attempts b ON b.task_id = a.task_id AND b.attempt < a.attempt
         WHERE b.ended_at IS NULL OR b.ended_at > a.started_at OR b.outcome = 'Completed'""",
    "an attempt commits a dataset once": """
        SELECT task_id, dataset_uuid FROM commits GROUP BY 1, 2 HAVING count(*) > 1""",
    "the commits of a dataset are numbered without a gap": """
        -- After a restore they continue after a multiple of a thousand million.
        SELECT dataset_uuid FROM commits
         GROUP BY dataset_uuid, (number - 1) / 1000000000
        HAVING max(number) - min(number) + 1 <> count(*) OR min(number) % 1000000000 <> 1
        UNION ALL
        SELECT h.dataset_uuid FROM dataset_heads h
         WHERE h.last_commit IS DISTINCT FROM (
               SELECT max(c.number) FROM commits c WHERE c.dataset_uuid = h.dataset_uuid)""",
    "a completed noop published its input event, once": """
        SELECT t.id, count(e.id) FROM tasks t
          JOIN jobs j ON j.id = t.job_id AND j.operator = 'noop' AND j.runtime <> 'ecs_udf'
          LEFT JOIN events e ON e.producer_task_id = t.id
         WHERE t.status = 'Completed' AND t.event_id IS NOT NULL
         GROUP BY t.id HAVING count(e.id) <> 1""",
    "every outbox entry was published": "SELECT id, kind, status, last_error FROM outbox WHERE status <> 'Done'",
    "every accepted mutation has its entry": """
        SELECT 'event', id::text FROM events e WHERE disposition = 'Route' AND NOT EXISTS (
            SELECT FROM outbox o WHERE o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text)
        UNION ALL
        SELECT 'invalidation', id::text FROM data_invalidations v WHERE disposition = 'Route' AND NOT EXISTS (
            SELECT FROM outbox o WHERE o.kind = 'route_invalidation'
               AND o.payload ->> 'invalidation_id' = v.id::text)
        UNION ALL
        SELECT 'task', id::text FROM tasks t WHERE woken_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM outbox o WHERE o.kind = 'enqueue_task' AND o.payload ->> 'task_id' = t.id::text)
        UNION ALL
        SELECT 'publish', id::text FROM buffer_publishes p WHERE NOT EXISTS (
            SELECT FROM outbox o WHERE o.kind = 'publish_buffer' AND o.payload ->> 'publish_id' = p.id::text)""",
    "nothing is left to do": """
        SELECT t.id, j.name, t.status FROM tasks t JOIN jobs j ON j.id = t.job_id
         WHERE t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.next_retry_at IS NOT NULL)""",
    "current ranges do not overlap": """
        SELECT a.partition_key, b.partition_key FROM partition_versions a
          JOIN partition_versions b ON b.dataset_version = a.dataset_version AND b.partition_key <> a.partition_key
         WHERE a.valid_to IS NULL AND b.valid_to IS NULL AND a.block_range && b.block_range""",
    "ranges tile the requested range, without hole or overlap": """
        WITH published AS (
            SELECT d.producer_job_name AS job, range_agg(e.block_range) AS whole,
                   sum(upper(e.block_range) - lower(e.block_range)) AS numbers
              FROM events e JOIN datasets d ON d.id = e.dataset_uuid
             WHERE d.producer_job_name IN ('span', 'cut', 'piece', 'join') AND e.block_range IS NOT NULL
             GROUP BY 1)
        SELECT published.job, published.whole, published.numbers FROM published, published requested
         WHERE requested.job = 'span'
           AND (published.whole <> requested.whole OR published.numbers <> requested.numbers)""",
}


async def broken(pool: asyncpg.Pool | asyncpg.pool.PoolConnectionProxy) -> dict[str, list[str]]:
    """The entries that the history breaks, with the first rows that show it."""
    found = {}
    for entry, statement in GUARANTEES.items():
        rows = await pool.fetch(statement)
        if rows:
            found[entry] = [str(tuple(row)) for row in rows[:5]]
    return found


async def assert_kept(pool: asyncpg.Pool, queue: asyncpg.Pool, accepted: set[UUID] | None = None) -> None:
    """`accepted`: the ids of the events that callers received; then there are exactly those."""
    assert await broken(pool) == {}
    if accepted is not None:
        assert accepted, "a system without calls proves nothing"
        rows = await pool.fetch("SELECT id FROM events WHERE origin = 'manual'")
        assert {row["id"] for row in rows} == accepted
    left = "SELECT queue, count(*) FROM pgqueue.messages WHERE queue ~ '^tasks-ecs_(platform|udf)' GROUP BY 1"
    assert [tuple(row) for row in await queue.fetch(left)] == []
    await _assert_batches_sent(pool, queue)


async def _assert_batches_sent(pool: asyncpg.Pool, queue: asyncpg.Pool) -> None:
    published = {str(row["id"]) for row in await pool.fetch("SELECT id FROM buffer_publishes")}
    rows = await queue.fetch("SELECT body FROM pgqueue.messages WHERE queue = 'buffer'")
    bodies = [json.loads(row["body"]) for row in rows]  # of batches, and of tables that are to be made
    assert {body["publish_id"] for body in bodies if "publish_id" in body} == published
