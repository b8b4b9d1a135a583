-- The follower's outbox.

-- name: lock_source
-- A follower's row, made if it is new; two runs of one follower queue here.
INSERT INTO trace_meta.sources (source_key) VALUES (%(source)s)
ON CONFLICT (source_key) DO UPDATE SET updated_at = now()
RETURNING announced_to, finalized_to;

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

-- name: told
-- These were heard.
DELETE FROM trace_meta.announcements WHERE source_key = %(source)s AND id = ANY(%(ids)s);

-- name: forget_source
-- A follower and what it owed.
DELETE FROM trace_meta.sources WHERE source_key = %(source)s;

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
