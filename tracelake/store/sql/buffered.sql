-- name: declarations
-- The declarations of buffered datasets in force in an organisation.
SELECT dag_name, name, declaration::text FROM buffered_datasets WHERE org_id = $1;

-- name: declaration_of
-- The one in force of a dataset, held until the end of the transaction.
SELECT declaration::text FROM buffered_datasets WHERE dataset_uuid = $1 AND org_id = $2 FOR UPDATE;

-- name: declare
-- The declaration that is in force from now on, the columns that readers are told of, and a promise to the sink.
WITH declared AS (
    INSERT INTO buffered_datasets (dataset_uuid, org_id, dataset_version, dag_name, name, declaration)
    VALUES ($1, $2, $3, $4, $5, $6::jsonb)
    ON CONFLICT (dataset_uuid) DO UPDATE SET declaration = excluded.declaration, updated_at = now()
), told AS (
    UPDATE dataset_versions SET columns = $7::jsonb, schema_hash = $8 WHERE id = $3
)
INSERT INTO outbox (org_id, kind, payload) VALUES ($2, 'prepare_table', jsonb_build_object('dataset_uuid', $1::uuid));

-- name: records
-- What the sink may believe about publishes: whose they are, where their batch must lie, how they stand.
SELECT id AS publish_id, org_id, dataset_uuid, dataset_version, task_id, attempt,
       coalesce(repaired_uri, batch_uri) AS batch_uri, content_type,
       -- What the producer said of the old bytes says nothing of the repaired ones.
       CASE WHEN repaired_uri IS NULL THEN record_count END AS record_count,
       CASE WHEN repaired_uri IS NULL THEN batch_size_bytes END AS batch_size_bytes, status::text, created_at
  FROM buffer_publishes
 WHERE id = ANY ($1::uuid[]);

-- name: tables
-- What the tables of these datasets are to be.
SELECT dataset_uuid, dataset_version, org_id, name, declaration::text
  FROM buffered_datasets
 WHERE dataset_uuid = ANY ($1::uuid[]);

-- name: settle_committed
-- Batches whose rows are in their tables: the status, a commit each, and their event with its outbox entry; each once,
-- however often it is sent. Rows in the table are a fact: another sink that refused the batch is overruled. Datasets in a
-- fixed order, so that two who settle at once do not wait in a ring.
WITH told AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS v (id, seq, row_count, byte_count)
), held AS MATERIALIZED (
    SELECT p.id FROM buffer_publishes p JOIN told v ON v.id = p.id ORDER BY p.dataset_uuid, p.id FOR UPDATE OF p
), settled AS (
    UPDATE buffer_publishes p
       SET status = 'Committed', settled_at = now(), seq = v.seq, row_count = v.row_count, error_message = NULL,
           error_line = NULL
      FROM told v, held
     WHERE p.id = v.id AND held.id = p.id AND p.status <> 'Committed'
    RETURNING p.id, p.org_id, p.dataset_uuid, p.dataset_version, p.task_id, p.attempt, v.seq, v.row_count, v.byte_count
), heads AS (
    INSERT INTO dataset_heads (dataset_uuid, org_id, last_commit)
    SELECT dataset_uuid, org_id, count(*) FROM settled GROUP BY 1, 2 ORDER BY 1
    ON CONFLICT (dataset_uuid) DO UPDATE SET last_commit = dataset_heads.last_commit + excluded.last_commit
    RETURNING dataset_uuid, last_commit
), numbered AS (
    SELECT s.*, h.last_commit - count(*) OVER (PARTITION BY s.dataset_uuid)
                + row_number() OVER (PARTITION BY s.dataset_uuid ORDER BY s.seq) AS number
      FROM settled s JOIN heads h ON h.dataset_uuid = s.dataset_uuid
), committed AS (
    INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, scope, row_count, bytes)
    SELECT dataset_uuid, number, org_id, dataset_version, task_id, attempt, 'publish:' || id, row_count, byte_count
      FROM numbered
), stored AS (
    INSERT INTO events (org_id, origin, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, commit_number, disposition, audit_reason)
    SELECT n.org_id, 'sink', 'cursor', n.attempt, n.task_id, n.task_id, n.dataset_uuid, n.dataset_version,
           'cursor:' || n.seq, n.seq, n.number,
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END
      FROM numbered n
      JOIN datasets d ON d.id = n.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = n.dataset_uuid
            AND served.dataset_version = n.dataset_version
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, disposition
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id) FROM stored WHERE disposition = 'Route'
)
SELECT count(*) FROM settled;

-- name: settle_dead
-- Batches that the sink refused, with line and reason; they wait for a person.
UPDATE buffer_publishes p
   SET status = 'Dead', settled_at = now(), error_message = v.reason, error_line = v.line
  FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS v (id, line, reason)
 WHERE p.id = v.id AND p.status = 'Accepted'
RETURNING p.id;

-- name: list_dead
-- For people: batches that the sink refused, the newest first. Ids rise with time, so the last one seen says where to go on.
SELECT p.id AS publish_id, p.dataset_uuid, d.name AS dataset, d.producer_dag_name AS dag, p.task_id, p.attempt,
       coalesce(p.repaired_uri, p.batch_uri) AS batch_uri, p.content_type, p.error_line AS line, p.error_message AS reason, p.replays,
       p.created_at AS published_at, p.settled_at AS died_at
  FROM buffer_publishes p
  JOIN datasets d ON d.id = p.dataset_uuid
 WHERE p.org_id = $1 AND p.status = 'Dead' AND ($2::uuid IS NULL OR p.id < $2)
   AND ($4::text IS NULL OR d.name = $4)
 ORDER BY p.id DESC
 LIMIT $3;

-- name: count_dead
-- How many batches of an organisation, or of one of its datasets, the sink refused.
SELECT count(*)
  FROM buffer_publishes p
  JOIN datasets d ON d.id = p.dataset_uuid
 WHERE p.org_id = $1 AND p.status = 'Dead' AND ($2::text IS NULL OR d.name = $2);

-- name: find_publish
-- One publish of an organisation.
SELECT id, task_id, attempt, dataset_uuid, coalesce(repaired_uri, batch_uri) AS batch_uri, status::text
  FROM buffer_publishes WHERE org_id = $1 AND id = $2;

-- name: replay
-- A dead batch is tried again, from where it lies or from where a repaired one was put, with a promise to the sink.
WITH again AS (
    UPDATE buffer_publishes
       SET status = 'Accepted', owed_at = now(), settled_at = NULL, error_message = NULL, error_line = NULL, replays = replays + 1,
           repaired_uri = coalesce($3, repaired_uri)
     WHERE org_id = $1 AND id = $2 AND status = 'Dead'
    RETURNING id, org_id
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM again
)
SELECT id FROM again;

-- name: owe_again
-- Publishes that nobody has settled for so long since they were owed, each with a new outbox entry; the oldest first.
-- So is a dead one, once: another sink may have put its rows into the table and died before it could say so.
WITH lost AS (
    SELECT id, status FROM buffer_publishes
     WHERE status = 'Accepted' AND owed_at < now() - $1::interval
     ORDER BY id
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), doubted AS (
    SELECT id, status FROM buffer_publishes
     WHERE status = 'Dead' AND settled_at < now() - $1::interval AND owed_at < settled_at
     ORDER BY org_id, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE buffer_publishes p SET owed_at = now()
      FROM (SELECT * FROM lost UNION ALL SELECT * FROM doubted) o
     WHERE p.id = o.id AND p.status = o.status
    RETURNING p.id, p.org_id
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM again
)
SELECT count(*) FROM again;

-- name: to_remove
-- Batches that were committed before the time we keep them for; taken by one replica at a time. One object may be
-- published for several datasets: it stays until all of them have it.
SELECT p.id, p.batch_uri, p.repaired_uri FROM buffer_publishes p
 WHERE p.status = 'Committed' AND p.removed_at IS NULL AND p.settled_at < now() - $1::interval
   AND NOT EXISTS (SELECT FROM buffer_publishes other
                    WHERE other.task_id = p.task_id AND other.attempt = p.attempt AND other.batch_uri = p.batch_uri
                      AND other.status <> 'Committed')
 ORDER BY p.settled_at
 LIMIT $2
   FOR UPDATE OF p SKIP LOCKED;

-- name: removed
-- They are gone from the object store.
UPDATE buffer_publishes SET removed_at = now() WHERE id = ANY ($1::uuid[]);
