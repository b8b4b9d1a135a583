-- Records of the sink, in data Postgres, that the rows of a batch are in their table.

-- name: old
-- Records older than they are kept ($1), the oldest first, after the last one of the page before ($2, $3).
SELECT publish_id, applied_at
  FROM trace_meta.applied_batches
 WHERE applied_at < now() - $1::interval AND (applied_at, publish_id) > ($2::timestamptz, $3::uuid)
 ORDER BY applied_at, publish_id
 LIMIT $4;

-- name: prune
-- Deletes records of batches that are settled.
WITH pruned AS (
    DELETE FROM trace_meta.applied_batches WHERE publish_id = ANY ($1::uuid[]) RETURNING publish_id
)
SELECT count(*) FROM pruned;
