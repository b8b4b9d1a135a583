-- The follower's outbox.

-- name: lock_source
-- Locks the row of a follower, inserted if it is new; two runs of one follower queue here. Returns no row to a run or
-- attempt that a later one has superseded. Ids of runs rise with time.
INSERT INTO trace_meta.sources AS source (source_key, run_id, attempt)
VALUES (%(source)s, %(run_id)s, %(attempt)s)
ON CONFLICT (source_key) DO UPDATE SET run_id = excluded.run_id, attempt = excluded.attempt, updated_at = now()
 WHERE source.run_id IS NULL OR (source.run_id, source.attempt) <= (excluded.run_id, excluded.attempt)
RETURNING announced_to, finalized_to, coalesce(old.run_id = new.run_id, false);

-- name: bound_idleness
-- Limits how long a follower that hangs in a transaction blocks its successor.
SELECT set_config('idle_in_transaction_session_timeout', '10s', false);

-- name: advance
-- Stores the progress, with the rows.
UPDATE trace_meta.sources
   SET announced_to = %(announced_to)s, finalized_to = %(finalized_to)s, updated_at = now()
 WHERE source_key = %(source)s;

-- name: announce
-- Adds an event to the outbox.
INSERT INTO trace_meta.announcements (source_key, kind, range_start, range_stop, cause)
VALUES (%(source)s, %(kind)s, %(start)s, %(stop)s, %(cause)s)
RETURNING id;

-- name: unsent
-- Returns the events that were not sent, in order.
SELECT id, kind, range_start, range_stop, cause
  FROM trace_meta.announcements
 WHERE source_key = %(source)s
 ORDER BY id
 LIMIT %(count)s;

-- name: next_final
-- Returns the start of the first range that became final after this event, and was not sent.
SELECT min(range_start) FROM trace_meta.announcements WHERE source_key = %(source)s AND kind = 'final' AND id > %(id)s;

-- name: mark_sent
-- Deletes the entries that were sent.
DELETE FROM trace_meta.announcements WHERE source_key = %(source)s AND id = ANY(%(ids)s);

-- name: delete_source
-- Deletes the progress and the outbox of a follower; which run may write for it is kept.
WITH entries AS (
    DELETE FROM trace_meta.announcements WHERE source_key = %(source)s
), blocks AS (
    DELETE FROM trace_meta.followed_blocks WHERE source_key = %(source)s
)
UPDATE trace_meta.sources SET announced_to = NULL, finalized_to = NULL, updated_at = now()
 WHERE source_key = %(source)s;

-- name: followed
-- Returns the written chain up to a number, the highest first: a follower searches it for the fork.
SELECT number, hash
  FROM trace_meta.followed_blocks
 WHERE source_key = %(source)s AND number <= %(last)s
 ORDER BY number DESC
 LIMIT %(count)s;

-- name: first_followed
-- Returns the first block written.
SELECT min(number) FROM trace_meta.followed_blocks WHERE source_key = %(source)s;

-- name: delete_followed
-- Deletes blocks that are replaced.
DELETE FROM trace_meta.followed_blocks WHERE source_key = %(source)s AND number >= %(first)s;

-- name: insert_followed
-- Inserts blocks that were written.
INSERT INTO trace_meta.followed_blocks (source_key, number, hash)
SELECT %(source)s, b.number, b.hash FROM unnest(%(numbers)s::bigint[], %(hashes)s::bytea[]) AS b (number, hash);
