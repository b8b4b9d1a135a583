-- name: list_pending
-- Outbox entries that are pending, processing or failed, the newest first. Each state has a partial index; entries that
-- are done are left out.
SELECT o.id, o.kind::text, o.status::text, o.attempts, o.payload, o.last_error, o.created_at, o.available_at
  FROM (SELECT * FROM outbox WHERE status = 'Pending'
        UNION ALL SELECT * FROM outbox WHERE status = 'Processing'
        UNION ALL SELECT * FROM outbox WHERE status = 'Failed') o
 WHERE o.org_id = $1
   AND ($2::text IS NULL OR o.status = $2::text::outbox_status)
   AND ($3::bigint IS NULL OR o.id < $3)
 ORDER BY o.id DESC
 LIMIT $4;

-- name: retry_given_up
-- Makes failed entries pending again; not where an entry with the same key is pending already.
WITH wanted AS (
    SELECT id FROM (
        SELECT o.id, row_number() OVER (PARTITION BY coalesce(o.dedupe_key, o.id::text) ORDER BY o.id DESC) AS nth
          FROM outbox o
         WHERE o.org_id = $1 AND o.status = 'Failed' AND ($2::bigint[] IS NULL OR o.id = ANY ($2::bigint[]))
           AND NOT EXISTS (SELECT FROM outbox other
                            WHERE other.dedupe_key = o.dedupe_key AND other.status IN ('Pending', 'Processing'))) found
     WHERE nth = 1
)
UPDATE outbox o SET status = 'Pending', available_at = now(), attempts = 0, processed_at = NULL
  FROM wanted
 WHERE o.id = wanted.id AND o.org_id = $1 AND o.status = 'Failed'
RETURNING o.id;
