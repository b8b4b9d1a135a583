-- name: list_declarations
-- The current declarations of an organisation's buffered datasets.
SELECT dag_name, name, declaration FROM buffered_datasets WHERE org_id = $1;

-- name: lock_declaration
-- The current declaration of a dataset, locked until the transaction ends.
SELECT declaration FROM buffered_datasets WHERE dataset_uuid = $1 AND org_id = $2 FOR UPDATE;

-- name: store_declaration
-- Stores the new declaration and the columns that readers see, with an outbox entry for the sink.
WITH declared AS (
    INSERT INTO buffered_datasets (dataset_uuid, org_id, dataset_version, dag_name, name, declaration)
    VALUES ($1, $2, $3, $4, $5, $6::jsonb)
    ON CONFLICT (dataset_uuid) DO UPDATE SET declaration = excluded.declaration, updated_at = now()
), described AS (
    UPDATE dataset_versions SET columns = $7::jsonb, schema_hash = $8 WHERE id = $3
)
INSERT INTO outbox (org_id, kind, payload) VALUES ($2, 'prepare_table', jsonb_build_object('dataset_uuid', $1::uuid));

-- name: list_publishes
-- Publishes by id, as the sink uses them: owner, location of the batch, status.
SELECT id AS publish_id, org_id, dataset_uuid, dataset_version, task_id, attempt,
       coalesce(repaired_uri, batch_uri) AS batch_uri, content_type,
       -- The producer's counts describe the original batch, not the repaired one.
       CASE WHEN repaired_uri IS NULL THEN record_count END AS record_count,
       CASE WHEN repaired_uri IS NULL THEN batch_size_bytes END AS batch_size_bytes, status::text, created_at
  FROM buffer_publishes
 WHERE id = ANY ($1::uuid[]);

-- name: list_tables
-- The declarations of the tables of these datasets.
SELECT dataset_uuid, dataset_version, org_id, name, declaration
  FROM buffered_datasets
 WHERE dataset_uuid = ANY ($1::uuid[]);

-- name: settle_committed
-- Marks batches as committed, with a commit, an event and its outbox entry for each, once however often it is reported.
-- It overrules another sink that refused the batch: its rows are in the table. Rows are locked in a fixed order, so that
-- concurrent calls do not deadlock.
WITH applied AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS v (id, seq, row_count, byte_count)
), locked AS MATERIALIZED (
    SELECT p.id FROM buffer_publishes p JOIN applied v ON v.id = p.id ORDER BY p.dataset_uuid, p.id FOR UPDATE OF p
), settled AS (
    UPDATE buffer_publishes p
       SET status = 'Committed', settled_at = now(), seq = v.seq, row_count = v.row_count, error_message = NULL,
           error_line = NULL
      FROM applied v, locked
     WHERE p.id = v.id AND locked.id = p.id AND p.status <> 'Committed'
    RETURNING p.id, p.org_id, p.dataset_uuid, p.dataset_version, p.task_id, p.attempt, v.seq, v.row_count, v.byte_count
), entries AS MATERIALIZED (
    SELECT s.*, row_number() OVER (PARTITION BY s.dataset_uuid ORDER BY s.seq) AS nth, 'publish:' || s.id AS scope,
           sha256('[]') AS files_hash, inputs_hash(s.task_id, s.attempt) AS inputs_hash, code_hash(s.task_id) AS code_hash
      FROM settled s
), heads AS (
    INSERT INTO dataset_heads (dataset_uuid, org_id, last_commit, last_hash)
    SELECT c.dataset_uuid, c.org_id, next_commit(0) - 1 + max(c.nth), (array_agg(c.hash ORDER BY c.nth DESC))[1]
      FROM (SELECT e.*, chain_commits(NULL, commit_digest(
                       e.org_id, e.dataset_uuid, next_commit(0) - 1 + e.nth, e.dataset_version, e.task_id, e.attempt,
                       e.scope, e.row_count, e.byte_count, NULL, now(), e.files_hash, e.inputs_hash, e.code_hash))
                       OVER (PARTITION BY e.dataset_uuid ORDER BY e.nth) AS hash
              FROM entries e) c
     GROUP BY 1, 2 ORDER BY 1
    ON CONFLICT (dataset_uuid) DO UPDATE
       SET last_commit = next_commit(dataset_heads.last_commit) + excluded.last_commit - next_commit(0),
           last_hash = (
               SELECT chain_commits(dataset_heads.last_hash, commit_digest(
                          e.org_id, e.dataset_uuid, next_commit(dataset_heads.last_commit) - 1 + e.nth, e.dataset_version,
                          e.task_id, e.attempt, e.scope, e.row_count, e.byte_count, NULL, now(), e.files_hash, e.inputs_hash, e.code_hash)
                          ORDER BY e.nth)
                 FROM entries e WHERE e.dataset_uuid = dataset_heads.dataset_uuid)
    RETURNING new.dataset_uuid, next_commit(coalesce(old.last_commit, 0)) - 1 AS before, old.last_hash AS first_previous
), numbered AS MATERIALIZED (
    SELECT e.*, h.before + e.nth AS number, h.first_previous,
           chain_commits(h.first_previous, commit_digest(
               e.org_id, e.dataset_uuid, h.before + e.nth, e.dataset_version, e.task_id, e.attempt, e.scope, e.row_count,
               e.byte_count, NULL, now(), e.files_hash, e.inputs_hash, e.code_hash))
               OVER (PARTITION BY e.dataset_uuid ORDER BY e.nth) AS hash
      FROM entries e JOIN heads h ON h.dataset_uuid = e.dataset_uuid
), committed AS (
    INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, scope, row_count, bytes, created_at,
                         previous_hash, files_hash, inputs_hash, code_hash, hash)
    SELECT dataset_uuid, number, org_id, dataset_version, task_id, attempt, scope, row_count, byte_count, now(),
           coalesce(lag(hash) OVER (PARTITION BY dataset_uuid ORDER BY nth), first_previous), files_hash, inputs_hash,
           code_hash, hash
      FROM numbered
), stored AS (
    INSERT INTO events (org_id, origin, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, commit_number, history, disposition, audit_reason)
    SELECT n.org_id, 'sink', 'cursor', n.attempt, n.task_id, n.task_id, n.dataset_uuid, n.dataset_version,
           'cursor:' || n.seq, n.seq, n.number, t.history,
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END
      FROM numbered n
      JOIN tasks t ON t.id = n.task_id
      JOIN datasets d ON d.id = n.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = n.dataset_uuid
            AND served.dataset_version = n.dataset_version
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid, disposition
), routing AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM stored WHERE disposition = 'Route'
)
SELECT count(*) FROM settled;

-- name: settle_dead
-- Marks batches as dead, with line and reason; a user replays them.
UPDATE buffer_publishes p
   SET status = 'Dead', settled_at = now(), error_message = v.reason, error_line = v.line
  FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS v (id, line, reason)
 WHERE p.id = v.id AND p.status = 'Accepted'
RETURNING p.id;

-- name: list_dead
-- A page of dead batches, the newest first. Ids rise with time, so a page starts below the last id of the page before.
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
-- How many dead batches an organisation, or one of its datasets, has.
SELECT count(*)
  FROM buffer_publishes p
  JOIN datasets d ON d.id = p.dataset_uuid
 WHERE p.org_id = $1 AND p.status = 'Dead' AND ($2::text IS NULL OR d.name = $2);

-- name: find_publish
-- A publish of an organisation by id.
SELECT id, task_id, attempt, dataset_uuid, coalesce(repaired_uri, batch_uri) AS batch_uri, status::text
  FROM buffer_publishes WHERE org_id = $1 AND id = $2;

-- name: replay_dead
-- Accepts a dead batch again, with its repaired contents if there are any ($3), and an outbox entry for the sink.
WITH again AS (
    UPDATE buffer_publishes
       SET status = 'Accepted', sent_at = now(), settled_at = NULL, error_message = NULL, error_line = NULL, replays = replays + 1,
           repaired_uri = coalesce($3, repaired_uri)
     WHERE org_id = $1 AND id = $2 AND status = 'Dead'
    RETURNING id, org_id
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM again
)
SELECT id FROM again;

-- name: republish_lost
-- Writes a new outbox entry for publishes that were not settled for so long ($1), the oldest first. Dead ones are
-- published again once: another sink may have applied the rows and died before it reported them.
WITH lost AS (
    SELECT id, status FROM buffer_publishes
     WHERE status = 'Accepted' AND sent_at < now() - $1::interval
     ORDER BY id
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), unconfirmed AS (
    SELECT id, status FROM buffer_publishes
     WHERE status = 'Dead' AND settled_at < now() - $1::interval AND sent_at < settled_at
     ORDER BY org_id, id
     LIMIT $2
       FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE buffer_publishes p SET sent_at = now()
      FROM (SELECT * FROM lost UNION ALL SELECT * FROM unconfirmed) o
     WHERE p.id = o.id AND p.status = o.status
    RETURNING p.id, p.org_id
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'publish_buffer', jsonb_build_object('publish_id', id) FROM again
)
SELECT count(*) FROM again;

-- name: lock_deletable
-- Batches that were committed longer ago than they are kept ($1), each locked by one replica. An object that was
-- published for several datasets is kept until it is committed for all of them.
SELECT p.id, p.batch_uri, p.repaired_uri FROM buffer_publishes p
 WHERE p.status = 'Committed' AND p.removed_at IS NULL AND p.settled_at < now() - $1::interval
   AND NOT EXISTS (SELECT FROM buffer_publishes other
                    WHERE other.task_id = p.task_id AND other.attempt = p.attempt AND other.batch_uri = p.batch_uri
                      AND other.status <> 'Committed')
 ORDER BY p.settled_at
 LIMIT $2
   FOR UPDATE OF p SKIP LOCKED;

-- name: mark_deleted
-- Records that batches were deleted from the object store.
UPDATE buffer_publishes SET removed_at = now() WHERE id = ANY ($1::uuid[]);
