-- The follower's outbox.

-- name: lock_source
-- A follower's row, made if it is new; two runs of one follower queue here. None comes back to a run, or an attempt of
-- it, that a later one has followed. Ids of runs rise with time.
INSERT INTO trace_meta.sources AS source (source_key, run_id, attempt)
VALUES (%(source)s, %(run_id)s, %(attempt)s)
ON CONFLICT (source_key) DO UPDATE SET run_id = excluded.run_id, attempt = excluded.attempt, updated_at = now()
 WHERE source.run_id IS NULL OR (source.run_id, source.attempt) <= (excluded.run_id, excluded.attempt)
RETURNING announced_to, finalized_to, coalesce(old.run_id = new.run_id, false);

-- name: bound_idleness
-- A follower that freezes in the middle of a transaction holds up its successor no longer than this.
SELECT set_config('idle_in_transaction_session_timeout', '10s', false);

-- name: advance
-- How far it has come, with its rows.
UPDATE trace_meta.sources
   SET announced_to = %(announced_to)s, finalized_to = %(finalized_to)s, updated_at = now()
 WHERE source_key = %(source)s;

-- name: announce
-- One thing to tell.
INSERT INTO trace_meta.announcements (source_key, kind, range_start, range_stop, cause)
VALUES (%(source)s, %(kind)s, %(start)s, %(stop)s, %(cause)s)
RETURNING id;

-- name: untold
-- What is left to tell, in order.
SELECT id, kind, range_start, range_stop, cause
  FROM trace_meta.announcements
 WHERE source_key = %(source)s
 ORDER BY id
 LIMIT %(count)s;

-- name: next_final
-- Where the first range begins that became final after this announcement, and has not been told.
SELECT min(range_start) FROM trace_meta.announcements WHERE source_key = %(source)s AND kind = 'final' AND id > %(id)s;

-- name: told
-- These were heard.
DELETE FROM trace_meta.announcements WHERE source_key = %(source)s AND id = ANY(%(ids)s);

-- name: delete_source
-- What a follower has done and what it owed; who may write for it stays known.
WITH owed AS (
    DELETE FROM trace_meta.announcements WHERE source_key = %(source)s
), blocks AS (
    DELETE FROM trace_meta.followed_blocks WHERE source_key = %(source)s
)
UPDATE trace_meta.sources SET announced_to = NULL, finalized_to = NULL, updated_at = now()
 WHERE source_key = %(source)s;

-- name: followed
-- The chain as it was last written, up to a number, the highest first: where a follower looks for the fork.
SELECT number, hash
  FROM trace_meta.followed_blocks
 WHERE source_key = %(source)s AND number <= %(last)s
 ORDER BY number DESC
 LIMIT %(count)s;

-- name: first_followed
-- Where it began.
SELECT min(number) FROM trace_meta.followed_blocks WHERE source_key = %(source)s;

-- name: forget_followed
-- Blocks that are replaced.
DELETE FROM trace_meta.followed_blocks WHERE source_key = %(source)s AND number >= %(first)s;

-- name: remember_followed
-- Blocks that were written.
INSERT INTO trace_meta.followed_blocks (source_key, number, hash)
SELECT %(source)s, b.number, b.hash FROM unnest(%(numbers)s::bigint[], %(hashes)s::bytea[]) AS b (number, hash);
