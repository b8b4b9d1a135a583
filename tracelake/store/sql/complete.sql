-- name: lock_fenced
-- The tasks of these attempts, locked, if attempt and lease token are the current ones: a row for each that is, with its
-- number. `open`: the attempt may still write; `late`: its lease has expired.
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[]) WITH ORDINALITY AS a (task_id, attempt, lease_token, n)
)
SELECT a.n, t.org_id, t.job_id, t.status::text, t.started_at, awaits_completion(t) AS open, t.status <> 'Running' AS late
  FROM asked a
  JOIN tasks t ON t.id = a.task_id
 WHERE holds_lease(t, a.attempt, a.lease_token) -- fence
 ORDER BY t.id
   FOR NO KEY UPDATE OF t;

-- name: complete_tasks
-- Ends attempts, however they ended, as many as there are completions: fence, task, history, events, operator state,
-- cursors, bootstraps, invalidations and failure alerts ($4). With $1 the events are routed in the same statement, their
-- outbox entries are written as done, and the wake-ups of the new tasks are left to replica $2 for $3; without, entries
-- to route them are written.
-- A row for each completion whose attempt and lease are the current ones, with its number; then, without a number, a row
-- for each new task, with the outbox entry of its wake-up unless it waits for a slot.
WITH asked AS (
    SELECT * FROM unnest($5::int[], $6::uuid[], $7::int[], $8::uuid[], $9::bytea[], $10::text[], $11::text[], $12::boolean[],
                         $13::text[], $14::text[], $15::jsonb[], $16::jsonb[], $17::jsonb[], $18::boolean[])
        AS a (n, task_id, attempt, lease_token, hash, ends_as, reason, retryable, fault, outputs, commits, state, progress,
              reports)
), fenced AS (
    SELECT a.n, a.hash, a.ends_as, a.reason, a.fault::failure_fault AS fault, a.outputs, a.commits, a.state, a.progress,
           a.reports, t.id, t.org_id, t.job_id, t.attempt, t.status, t.completion_hash, t.completion_answer, t.invalidation_id,
           t.input_versions, awaits_completion(t) AS open, c.platform_failures,
           t.status = 'Failed' AND t.next_retry_at IS NULL AS was_final,
           j.dag_name, j.name AS job_name, j.max_concurrency, j.source ->> 'kind' = 'always_on' AS restarts,
           -- An attempt that the platform ended counts against another limit than those that the job ended itself.
           CASE WHEN NOT a.retryable OR a.ends_as <> 'Failed' THEN NULL
                WHEN a.fault = 'platform' AND c.platform_failures + 1 < j.max_platform_failures
                    THEN now() + retry_wait(j.retry_backoff_seconds, j.retry_backoff_max_seconds, c.platform_failures + 1)
                WHEN a.fault = 'job' AND t.attempt - c.platform_failures < t.max_attempts
                    THEN now() + retry_wait(j.retry_backoff_seconds, j.retry_backoff_max_seconds,
                                            t.attempt - c.platform_failures) END AS next_retry_at
      FROM asked a
      JOIN tasks t ON t.id = a.task_id
      JOIN jobs j ON j.id = t.job_id
      -- A late completion decides anew whose fault the end was.
      CROSS JOIN LATERAL (
          SELECT t.platform_failures - (t.fault IS NOT DISTINCT FROM 'platform')::int AS platform_failures) c
     WHERE holds_lease(t, a.attempt, a.lease_token) -- fence
     ORDER BY t.id
       FOR NO KEY UPDATE OF t
), ending AS NOT MATERIALIZED (
    SELECT *
      FROM fenced
     WHERE open -- fence
), ended AS (
    UPDATE tasks t
       SET status = e.ends_as::task_status, completed_at = now(), lease_expires_at = NULL, next_retry_at = e.next_retry_at,
           error_message = CASE WHEN e.ends_as = 'Failed' THEN e.reason END,
           cancel_reason = CASE WHEN e.ends_as = 'Canceled' THEN e.reason END,
           fault = e.fault, platform_failures = e.platform_failures + (e.fault IS NOT DISTINCT FROM 'platform')::int,
           outputs = e.outputs::jsonb, progress = coalesce(e.progress, t.progress), completion_hash = e.hash,
           completion_answer = jsonb_build_object(
               'status', e.ends_as, 'next_retry_at', e.next_retry_at, 'commits', e.commits)
      FROM ending e
     WHERE t.id = e.id
), history AS (
    UPDATE task_attempts h
       SET ended_at = now(), outcome = e.ends_as::attempt_outcome, fault = e.fault, late = e.status <> 'Running',
           error_message = CASE WHEN e.ends_as = 'Failed' THEN e.reason END
      FROM ending e
     WHERE h.task_id = e.id AND h.attempt = e.attempt
), new_events AS (
    SELECT * FROM unnest($19::int[], $20::uuid[], $21::uuid[], $22::uuid[], $23::text[], $24::text[], $25::bigint[], $26::text[],
                         $27::bigint[], $28::bigint[], $29::bigint[])
        AS v (n, event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop,
              commit_number)
), stored AS (
    INSERT INTO events (id, org_id, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, partition_key, block_range, commit_number, disposition,
                        audit_reason, routed_at)
    SELECT v.event_id, e.org_id, v.kind::event_kind, e.attempt, e.id, e.id, v.dataset_uuid, v.dataset_version, v.scope,
           v.cursor_value, v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END,
           v.commit_number,
           CASE WHEN served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN served.dataset_version IS NULL THEN 'not the current generation' END,
           CASE WHEN served.dataset_version IS NOT NULL AND $1::boolean THEN now() END
      FROM new_events v
      JOIN ending e ON e.n = v.n
      JOIN datasets d ON d.id = v.dataset_uuid AND d.org_id = e.org_id
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid, dataset_version, kind, cursor_value, partition_key, block_range, commit_number,
              disposition, routed_at
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, status, attempts, processed_at)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id),
           CASE WHEN routed_at IS NULL THEN 'Pending' ELSE 'Done' END::outbox_status, (routed_at IS NOT NULL)::int, routed_at
      FROM stored WHERE disposition = 'Route'
), triggered AS (
    SELECT DISTINCT ON (e.id, j.job_id) e.*, j.job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency,
           event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range,
                          e.commit_number) AS dedupe_key
      FROM stored e
      JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
     WHERE e.routed_at IS NOT NULL
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, id,
           CASE WHEN partition_key IS NOT NULL THEN ARRAY[partition_key] END,
           trigger_of(dataset_uuid, dataset_version, cursor_value, partition_key, block_range, commit_number),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM triggered
     ORDER BY job_id, dedupe_key -- every transaction that creates the same tasks does so in this order: no deadlocks
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, woken_at
), wake_ups AS (
    -- Taken by the replica that writes them, which publishes them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT c.org_id, 'enqueue_task', jsonb_build_object('task_id', c.id, 'runtime', j.runtime),
           'Processing', $2, now() + $3::interval, 1
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
    RETURNING id, payload
), cursors AS (
    INSERT INTO dataset_cursors (job_id, dataset_uuid, dataset_version, org_id, cursor_value)
    SELECT job_id, (input_versions ->> 'dataset_uuid')::uuid, (input_versions ->> 'dataset_version')::uuid, org_id,
           max((input_versions ->> 'cursor')::bigint)
      FROM ending WHERE ends_as = 'Completed' AND input_versions ? 'cursor'
     GROUP BY 1, 2, 3, 4
     ORDER BY 1, 2, 3 -- every batch in the same order: no deadlocks
    ON CONFLICT (job_id, dataset_uuid, dataset_version)
    DO UPDATE SET cursor_value = greatest(dataset_cursors.cursor_value, excluded.cursor_value), updated_at = now()
), remembered AS (
    INSERT INTO operator_state (org_id, job_id, state)
    -- Of several tasks of one job in this batch, the last one counts: a statement cannot write a row twice.
    SELECT DISTINCT ON (org_id, job_id) org_id, job_id, state FROM ending WHERE state IS NOT NULL
     ORDER BY org_id, job_id, n DESC
    ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now()
), bootstrapped AS (
    UPDATE jobs j
       SET bootstrapped_at = now()
      FROM ending e
     WHERE j.id = e.job_id AND j.bootstrap IS NOT NULL AND j.bootstrapped_at IS NULL AND e.reports
), processed AS (
    UPDATE data_invalidation_jobs i
       SET processed_at = now()
      FROM ending e
     WHERE i.invalidation_id = e.invalidation_id AND i.job_id = e.job_id AND i.processed_at IS NULL AND e.ends_as = 'Completed'
), alarmed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT e.org_id, 'notify_failure', jsonb_build_object('task_id', e.id)
      FROM ending e
     WHERE e.ends_as = 'Failed' AND e.next_retry_at IS NULL AND e.restarts IS NOT TRUE
       AND EXISTS (SELECT FROM alert_definitions d WHERE d.org_id = e.org_id AND d.name = $4 AND d.enabled)
)
SELECT n, open, status::text, completion_hash, completion_answer::text AS answer, next_retry_at,
       extract(epoch FROM next_retry_at - now())::float8 AS retry_seconds, was_final, org_id, dag_name,
       job_name, restarts, max_concurrency IS NOT NULL AS has_slots, NULL::bigint AS entry, NULL AS payload
  FROM fenced
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, id, payload::text FROM wake_ups
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM created WHERE woken_at IS NULL;

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

-- name: schema_of
-- The schema of a generation by its id and dataset, in this organisation; nothing else is a target of an output.
SELECT schema_hash, columns::text
  FROM dataset_versions
 WHERE org_id = $1 AND dataset_uuid = $2 AND id = $3 AND generation IS NULL;

-- name: set_schema
-- The first commit of a generation sets its schema; later ones must agree.
UPDATE dataset_versions SET schema_hash = $2, columns = $3::jsonb WHERE id = $1 AND schema_hash IS NULL;

-- name: lock_commits
-- One commit of each of these datasets at a time, from the look at its current partitions to the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('trace commit ' || d, 0)) FROM unnest($1::text[]) WITH ORDINALITY AS a (d, n);

-- name: current_partitions
-- Current partitions that the new ones would replace, since which commit each is there, and whether an attempt that was
-- claimed later than $5 wrote it. And any one partition: it shows of which kind they are.
WITH found AS (
    SELECT * FROM replaced_partitions($1, $2, $3, $4)
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
-- Ends current partitions that the new ones replace: the same keys, or overlapping ranges.
UPDATE partition_versions p
   SET valid_to = $5
  FROM replaced_partitions($1, $2, $3, $4) f
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
SELECT r.storage_location, r.storage_glob
  FROM dataset_versions g
  JOIN dataset_versions r ON r.dataset_uuid = g.dataset_uuid AND r.config_hash = coalesce($3, g.config_hash)
 WHERE g.dataset_uuid = $1 AND g.id = $2 AND r.range_start = $4 AND r.range_end = $5;
