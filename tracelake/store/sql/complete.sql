-- name: lock_fenced
-- The one gate of every fenced write: the row, locked, if this attempt and lease are the current ones. `open` says
-- whether the attempt may still write: it runs, or it was given up unheard and no newer one has begun (S10).
SELECT t.id, t.org_id, t.job_id, t.attempt, t.status::text, t.started_at, t.max_attempts, t.timeout_seconds,
       t.platform_failures - (t.fault IS NOT DISTINCT FROM 'platform')::int AS platform_failures,
       t.completion_hash, t.completion_answer::text, t.invalidation_id, t.input_versions::text AS trigger,
       t.status = 'Running' OR (t.status = 'Failed' AND t.completion_hash IS NULL) AS open,
       t.status <> 'Running' AS late, t.status = 'Failed' AND t.next_retry_at IS NULL AS was_final
  FROM tasks t
 WHERE t.id = $1
   AND t.attempt = $2 -- fence
   AND t.lease_token = $3 -- fence
   FOR NO KEY UPDATE;

-- name: complete_plain
-- Many completions at once that carry events and no outputs: fence, end, history, events, state, marks; and, if $1, what
-- routing them comes to, so that nobody need take the promise up: it is written as kept. Else they are promised to be routed.
-- A row for each whose attempt and lease are the current ones, with the number of its question; then, without a number, one
-- for each task that was made, with its wake-up's promise unless it waits for a slot.
WITH asked AS (
    SELECT * FROM unnest($4::uuid[], $5::int[], $6::uuid[], $7::bytea[], $8::jsonb[], $9::jsonb[])
        WITH ORDINALITY AS a (task_id, attempt, lease_token, hash, answer, state, n)
), fenced AS (
    SELECT t.id, t.org_id, t.job_id, t.attempt, t.status, t.completion_hash, t.completion_answer, t.invalidation_id,
           t.input_versions, a.hash, a.answer, a.state, a.n,
           t.status = 'Running' OR (t.status = 'Failed' AND t.completion_hash IS NULL) AS open
      FROM asked a
      JOIN tasks t ON t.id = a.task_id
     WHERE t.attempt = a.attempt -- fence
       AND t.lease_token = a.lease_token -- fence
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE tasks t
       SET status = 'Completed', completed_at = now(), lease_expires_at = NULL, next_retry_at = NULL,
           error_message = NULL, fault = NULL,
           platform_failures = t.platform_failures - (t.fault IS NOT DISTINCT FROM 'platform')::int,
           outputs = '[]', completion_hash = f.hash, completion_answer = f.answer
      FROM fenced f
     WHERE t.id = f.id
       AND f.open -- fence
    RETURNING t.id, t.org_id, t.job_id, t.attempt, f.state, f.invalidation_id, f.status, f.input_versions AS read
), history AS (
    UPDATE task_attempts h
       SET ended_at = now(), outcome = 'Completed', error_message = NULL, fault = NULL, late = e.status <> 'Running'
      FROM ended e
     WHERE h.task_id = e.id AND h.attempt = e.attempt
), said AS (
    SELECT * FROM unnest($10::int[], $11::uuid[], $12::uuid[], $13::uuid[], $14::text[], $15::text[], $16::bigint[], $17::text[],
                         $18::bigint[], $19::bigint[])
        AS v (n, event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop)
), stored AS (
    INSERT INTO events (id, org_id, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, partition_key, block_range, disposition, audit_reason,
                        routed_at)
    SELECT v.event_id, e.org_id, v.kind::event_kind, e.attempt, e.id, e.id, v.dataset_uuid, v.dataset_version, v.scope,
           v.cursor_value, v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END,
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END,
           CASE WHEN served.dataset_version IS NOT NULL AND $1::boolean THEN now() END
      FROM said v
      JOIN fenced f ON f.n = v.n
      JOIN ended e ON e.id = f.id
      JOIN datasets d ON d.id = v.dataset_uuid AND d.org_id = e.org_id
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid, dataset_version, kind, cursor_value, partition_key, block_range, commit_number,
              disposition, routed_at
), promised AS (
    INSERT INTO outbox (org_id, kind, payload, status, attempts, processed_at)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id),
           CASE WHEN routed_at IS NULL THEN 'Pending' ELSE 'Done' END::outbox_status, (routed_at IS NOT NULL)::int, routed_at
      FROM stored WHERE disposition = 'Route'
), told AS (
    SELECT *, true AS is_served, NULL::jsonb AS jobs FROM stored WHERE routed_at IS NOT NULL
-- part: tasks_of_told
-- part: wake_ups_of_made
), remembered AS (
    INSERT INTO operator_state (org_id, job_id, state)
    -- Of several tasks of one job in this batch, the last word counts: a row cannot be written twice in one statement.
    SELECT DISTINCT ON (org_id, job_id) org_id, job_id, state FROM ended WHERE state IS NOT NULL
     ORDER BY org_id, job_id, id DESC
    ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now()
), risen AS (
    INSERT INTO dataset_cursors (job_id, dataset_uuid, dataset_version, org_id, cursor_value)
    SELECT job_id, (read ->> 'dataset_uuid')::uuid, (read ->> 'dataset_version')::uuid, org_id,
           max((read ->> 'cursor')::bigint)
      FROM ended WHERE read ? 'cursor'
     GROUP BY 1, 2, 3, 4
     ORDER BY 1, 2, 3 -- every batch in the same order: no two wait for each other
    ON CONFLICT (job_id, dataset_uuid, dataset_version)
    DO UPDATE SET cursor_value = greatest(dataset_cursors.cursor_value, excluded.cursor_value), updated_at = now()
), bootstrapped AS (
    UPDATE jobs j
       SET bootstrapped_at = now()
      FROM ended e
     WHERE j.id = e.job_id AND j.bootstrap IS NOT NULL AND j.bootstrapped_at IS NULL
       AND (e.state IS NOT NULL OR EXISTS (SELECT FROM said v JOIN fenced f ON f.n = v.n WHERE f.id = e.id))
), processed AS (
    UPDATE data_invalidation_jobs i
       SET processed_at = now()
      FROM ended e
     WHERE i.invalidation_id = e.invalidation_id AND i.job_id = e.job_id AND i.processed_at IS NULL
)
SELECT f.n, f.job_id, f.open, f.status::text, f.completion_hash, f.completion_answer::text AS answer, NULL::bigint AS promise,
       NULL AS payload
  FROM fenced f
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, id, payload::text FROM owed
 UNION ALL
SELECT NULL, job_id, NULL, NULL, NULL, NULL, NULL, NULL FROM made WHERE woken_at IS NULL;

-- name: end_task
-- The end of a fenced attempt, whatever it is; the caller holds the row through lock_fenced.
UPDATE tasks
   SET status = $2::task_status, completed_at = now(), lease_expires_at = NULL,
       next_retry_at = now() + $3::interval, error_message = $4, cancel_reason = $5,
       outputs = $6::jsonb, completion_hash = $7, completion_answer = $8::jsonb, fault = $9::text::failure_fault,
       -- A late reply says anew whose fault the end was.
       platform_failures = platform_failures - (fault IS NOT DISTINCT FROM 'platform')::int
                           + ($9::text IS NOT DISTINCT FROM 'platform')::int
 WHERE id = $1
RETURNING next_retry_at;

-- name: end_attempt
-- The history of that attempt; a late reply overwrites that it was given up.
UPDATE task_attempts
   SET ended_at = now(), outcome = $3::attempt_outcome, error_message = $4, late = $5, fault = $6::text::failure_fault
 WHERE task_id = $1 AND attempt = $2;

-- name: next_commit
-- The dataset's next commit number; the row lock puts commits in order.
INSERT INTO dataset_heads (dataset_uuid, org_id, last_commit)
VALUES ($1, $2, 1)
ON CONFLICT (dataset_uuid) DO UPDATE SET last_commit = dataset_heads.last_commit + 1
RETURNING last_commit;

-- name: insert_commit
-- One accepted effect of a task on a dataset.
INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, row_count, bytes, schema_hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: generation_of
-- The generation by its id and dataset, in this organisation; nothing else is a target of an output.
SELECT id, schema_hash, columns::text, config_hash, storage_location
  FROM dataset_versions
 WHERE org_id = $1 AND dataset_uuid = $2 AND id = $3 AND generation IS NULL;

-- name: set_schema
-- The first commit of a generation says its schema; later ones must agree.
UPDATE dataset_versions SET schema_hash = $2, columns = $3::jsonb WHERE id = $1 AND schema_hash IS NULL;

-- name: lock_commits
-- One commit of a dataset at a time, from the look at what is in force to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('trace commit ' || $1, 0));

-- name: in_force
-- What the new partitions would replace, since which commit it is there, and whether an attempt that was claimed later
-- than $5 has put it in force. And any one partition: it shows of which kind they are.
WITH found AS (
-- part: replaced_partitions
    UNION
    (SELECT p.partition_key, p.valid_from
       FROM partition_versions p
      WHERE p.dataset_version = $1 AND p.valid_to IS NULL
      LIMIT 1)
)
SELECT p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop, p.valid_from AS commit,
       a.started_at > $5 AS newer
  FROM found f
  JOIN partition_versions p
    ON p.dataset_version = $1 AND p.partition_key = f.partition_key AND p.valid_from = f.valid_from
  JOIN commits c ON c.dataset_uuid = p.dataset_uuid AND c.number = p.valid_from
  JOIN task_attempts a ON a.task_id = c.task_id AND a.attempt = c.attempt;

-- name: end_partitions
-- Partitions in force that the new ones replace: the same keys, or overlapping ranges.
WITH found AS (
-- part: replaced_partitions
)
UPDATE partition_versions p
   SET valid_to = $5
  FROM found f
 WHERE p.dataset_version = $1 AND p.partition_key = f.partition_key AND p.valid_from = f.valid_from
   AND p.valid_to IS NULL;

-- name: insert_partitions
-- What the partitions hold from this commit on.
INSERT INTO partition_versions (dataset_version, partition_key, valid_from, org_id, dataset_uuid, block_range, location,
                                files, row_count, bytes)
SELECT $1, n.key, $5, $6, $7, CASE WHEN n.start IS NOT NULL THEN int8range(n.start, n.stop) END, n.location, n.files::jsonb,
       n.row_count, n.bytes
  FROM unnest($2::text[], $3::bigint[], $4::bigint[], $8::text[], $9::text[], $10::bigint[], $11::bigint[])
       AS n (key, start, stop, location, files, row_count, bytes);

-- name: publish_range
-- A range publication: the same contents again is nothing new. Without a hash of its own ($7) it has the generation's,
-- which no other generation of the dataset has.
INSERT INTO dataset_versions (id, org_id, dataset_uuid, generation, storage_location, storage_glob, config_hash, block_range)
SELECT $1, $2, $3, g.id, $5, $6, coalesce($7, g.config_hash), int8range($8, $9)
  FROM dataset_versions g
 WHERE g.id = $4 AND g.org_id = $2 AND g.dataset_uuid = $3
ON CONFLICT DO NOTHING
RETURNING id;

-- name: published_range
-- What stands under the key of a range publication.
SELECT r.id, r.storage_location, r.storage_glob, r.generation
  FROM dataset_versions g
  JOIN dataset_versions r ON r.dataset_uuid = g.dataset_uuid AND r.config_hash = coalesce($3, g.config_hash)
 WHERE g.dataset_uuid = $1 AND g.id = $2 AND r.range_start = $4 AND r.range_end = $5;

-- name: save_state
-- Durable operator state, in the transaction of the completion.
INSERT INTO operator_state (org_id, job_id, state)
VALUES ($1, $2, $3::jsonb)
ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now();

-- name: acknowledge_bootstrap
-- The source has done what it was to do once per version, and said so by telling of something.
UPDATE jobs SET bootstrapped_at = now() WHERE id = $1 AND bootstrap IS NOT NULL AND bootstrapped_at IS NULL;

-- name: raise_cursor
-- How far a job has read the input that made the task.
INSERT INTO dataset_cursors (job_id, dataset_uuid, dataset_version, org_id, cursor_value)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (job_id, dataset_uuid, dataset_version)
DO UPDATE SET cursor_value = greatest(dataset_cursors.cursor_value, excluded.cursor_value), updated_at = now();

-- name: mark_processed
-- This reader has done its share of the invalidation.
UPDATE data_invalidation_jobs SET processed_at = now()
 WHERE invalidation_id = $1 AND job_id = $2 AND processed_at IS NULL;

-- name: set_answer
-- What the completion is answered with, kept to be answered again.
UPDATE tasks SET completion_answer = $2::jsonb WHERE id = $1;

-- name: say_last
-- What a task says of itself with its completion; its row is locked by the fence.
UPDATE tasks SET progress = $2 WHERE id = $1 AND status = 'Running';
