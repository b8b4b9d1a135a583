-- Notes of the sink, in data Postgres, that a batch's rows are in their table.

-- name: old
-- Those that are older than they are kept at least ($1), the oldest first, after the last one that was seen ($2, $3).
SELECT publish_id, applied_at
  FROM trace_meta.applied_batches
 WHERE applied_at < now() - $1::interval AND (applied_at, publish_id) > ($2::timestamptz, $3::uuid)
 ORDER BY applied_at, publish_id
 LIMIT $4;

-- name: prune
-- These are settled: they are deleted.
WITH pruned AS (
    DELETE FROM trace_meta.applied_batches WHERE publish_id = ANY ($1::uuid[]) RETURNING publish_id
)
SELECT count(*) FROM pruned;
