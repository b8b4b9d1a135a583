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
-- processed inputs, bootstraps, invalidations and failure alerts ($4). With $1 the events are routed in the same statement, their
-- outbox entries are written as done, and the wake-ups of the new tasks are left to replica $2 for $3; without, entries
-- to route them are written. Tasks whose outputs may be used again get their memo key ($33: the code of each
-- operator). Events about partitions whose content is the same as before are only recorded.
-- A row for each completion whose attempt and lease are the current ones, with its number; then, without a number, a row
-- for each new task, with the outbox entry of its wake-up unless it waits for a slot.
WITH asked AS (
    SELECT * FROM unnest($5::int[], $6::uuid[], $7::int[], $8::uuid[], $9::bytea[], $10::text[], $11::text[], $12::boolean[],
                         $13::text[], $14::text[], $15::jsonb[], $16::jsonb[], $17::jsonb[], $18::boolean[], $31::bigint[], $32::bigint[])
        AS a (n, task_id, attempt, lease_token, hash, ends_as, reason, retryable, fault, outputs, commits, state, progress,
              reports, requests, bytes)
), fenced AS (
    SELECT a.n, a.hash, a.ends_as, a.reason, a.fault::failure_fault AS fault, a.outputs, a.commits, a.state, a.progress,
           a.reports, a.requests, a.bytes, t.id, t.org_id, t.job_id, t.attempt, t.status, t.completion_hash, t.completion_answer, t.invalidation_id,
           t.input_versions, t.started_at, t.history, awaits_completion(t) AS open, c.platform_failures,
           t.status = 'Failed' AND t.next_retry_at IS NULL AS was_final,
           j.dag_name, j.name AS job_name, j.lineage_id, j.makes_whole, j.max_concurrency, j.memo_hash,
           j.source ->> 'kind' = 'always_on' AS restarts,
           -- An attempt that the platform ended counts against another limit than those that the job ended itself.
           CASE WHEN NOT a.retryable OR a.ends_as <> 'Failed' THEN NULL
                WHEN a.fault = 'platform' AND c.platform_failures + 1 < j.max_platform_failures
                    THEN now() + retry_wait(j.retry_backoff_seconds, j.retry_backoff_max_seconds, c.platform_failures + 1)
                WHEN a.fault = 'job' AND t.attempt - t.skipped_attempts - c.platform_failures < t.max_attempts
                    THEN now() + retry_wait(j.retry_backoff_seconds, j.retry_backoff_max_seconds,
                                            t.attempt - t.skipped_attempts - c.platform_failures) END AS next_retry_at
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
           node_requests = t.node_requests + e.requests, bytes_written = t.bytes_written + e.bytes,
           memo_key = CASE WHEN e.memo_hash IS NOT NULL AND e.ends_as = 'Completed' AND e.commits IS NOT NULL
                           THEN memo_key(e.id, $33::jsonb) END,
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
                         $27::bigint[], $28::bigint[], $29::bigint[], $30::boolean[]) WITH ORDINALITY
        AS v (n, event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop,
              commit_number, unchanged, place)
), stored AS (
    INSERT INTO events (id, org_id, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, partition_key, block_range, commit_number, history, disposition,
                        audit_reason, routed_at)
    SELECT v.event_id, e.org_id, v.kind::event_kind, e.attempt, e.id, e.id, v.dataset_uuid, v.dataset_version, v.scope,
           v.cursor_value, v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END,
           v.commit_number, e.history,
           CASE WHEN v.unchanged OR served.dataset_version IS NULL THEN 'AuditOnly' ELSE 'Route' END::disposition,
           CASE WHEN v.unchanged THEN 'the partition has the same content as before'
                WHEN served.dataset_version IS NULL THEN 'not the current generation' END,
           CASE WHEN NOT v.unchanged AND served.dataset_version IS NOT NULL AND $1::boolean THEN now() END
      FROM new_events v
      JOIN ending e ON e.n = v.n
      JOIN datasets d ON d.id = v.dataset_uuid AND d.org_id = e.org_id
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
     ORDER BY v.place -- their entries rise in the order in which the task reported them
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid, dataset_version, kind, cursor_value, partition_key, block_range, commit_number,
              history, disposition, routed_at
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of, status, attempts, processed_at)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid,
           CASE WHEN routed_at IS NULL THEN 'Pending' ELSE 'Done' END::outbox_status, (routed_at IS NOT NULL)::int, routed_at
      FROM stored WHERE disposition = 'Route'
    RETURNING id, (payload ->> 'event_id')::uuid AS event_id
), triggered AS (
    SELECT DISTINCT ON (e.id, j.job_id) e.*, j.job_id, j.max_attempts, j.timeout_seconds, j.max_concurrency,
           CASE WHEN e.history THEN 'bulk' ELSE j.priority END AS priority,
           j.holds OR (e.history AND j.holds_history) AS holds,
           CASE WHEN e.kind <> 'partition' THEN splits_updates(j.job_id, e.dataset_version) ELSE false END AS splits,
           event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range,
                          e.commit_number) AS dedupe_key
      FROM stored e
      JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
     WHERE e.routed_at IS NOT NULL AND (j.takes_history OR NOT e.history)
), held AS (
    INSERT INTO held_events (org_id, job_id, seq, event_id, history, waits_for)
    SELECT t.org_id, t.job_id, entries.id, t.id, t.history, t.job_id
      FROM triggered t JOIN entries ON entries.event_id = t.id
     WHERE t.holds
     ORDER BY t.job_id, entries.id
    ON CONFLICT (job_id, event_id) DO NOTHING
), compared AS (
    -- As in `route_events`.
    INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
    SELECT DISTINCT job_id, dataset_uuid, org_id FROM triggered WHERE splits AND NOT holds ORDER BY 1, 2
    ON CONFLICT (job_id, dataset_uuid) DO UPDATE
       SET due_at = least(catch_ups.due_at, now()), again = (catch_ups.stage, catch_ups.after_start) <> ('partitions', -2)
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, history, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, id, history,
           CASE WHEN partition_key IS NOT NULL THEN ARRAY[partition_key] END,
           trigger_of(dataset_uuid, dataset_version, cursor_value, partition_key, block_range, commit_number),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM triggered
     WHERE NOT holds AND NOT splits
     ORDER BY job_id, dedupe_key -- every transaction that creates the same tasks does so in this order: no deadlocks
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    -- Taken by the replica that writes them, which publishes them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id),
           'Processing', $2, now() + $3::interval, 1
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
    RETURNING id, payload
), processed AS (
    -- Of a partition, the commit that the task was created for; of a job that makes its whole output anew, all that it read.
    INSERT INTO processed_inputs (lineage_id, dataset_version, partition_key, commit_number, cursor_value, read_at, task_id)
    SELECT e.lineage_id, r.dataset_version, r.partition_key, max(r.commit_number), max(r.cursor_value), max(e.started_at),
           (array_agg(e.id ORDER BY e.started_at DESC, e.id))[1]
      FROM ending e
      CROSS JOIN LATERAL (
          SELECT (e.input_versions ->> 'dataset_version')::uuid AS dataset_version,
                 processed_key(e.input_versions ->> 'partition_key', (e.input_versions ->> 'cursor')::bigint,
                               (e.input_versions ->> 'commit')::bigint) AS partition_key,
                 (e.input_versions ->> 'commit')::bigint AS commit_number,
                 (e.input_versions ->> 'cursor')::bigint AS cursor_value
           WHERE e.invalidation_id IS NULL AND NOT e.makes_whole
          UNION ALL
          SELECT i.input_dataset_version, '', i.input_commit, NULL
            FROM task_inputs i WHERE e.makes_whole AND i.task_id = e.id AND i.attempt = e.attempt) r
     WHERE e.ends_as = 'Completed' AND r.dataset_version IS NOT NULL
     GROUP BY 1, 2, 3
     ORDER BY 1, 2, 3 -- every batch in the same order: no deadlocks
    ON CONFLICT (lineage_id, dataset_version, partition_key) DO UPDATE
       SET commit_number = greatest(processed_inputs.commit_number, excluded.commit_number),
           cursor_value = greatest(processed_inputs.cursor_value, excluded.cursor_value),
           read_at = greatest(processed_inputs.read_at, excluded.read_at), task_id = excluded.task_id, again = false
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
), done_again AS (
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

-- name: insert_commit
-- One accepted effect of a task on a dataset, under the dataset's next number and linked to the commit before it. The row
-- lock of the head puts commits in order, and its hash is the last one even while others wait.
WITH entry AS MATERIALIZED (
    SELECT $1::uuid AS dataset_uuid, $2::uuid AS org_id, $3::uuid AS dataset_version, $4::uuid AS task_id, $5::int AS attempt,
           $6::bigint AS row_count, $7::bigint AS bytes, $8::text AS schema_hash, $9::bytea AS files_hash,
           inputs_hash($4, $5) AS inputs_hash, code_hash($4) AS code_hash, $10::int AS unchanged
), head AS (
    INSERT INTO dataset_heads (dataset_uuid, org_id, last_commit, last_hash)
    SELECT e.dataset_uuid, e.org_id, next_commit(0),
           link_commit(NULL, NULL, commit_digest(
               e.org_id, e.dataset_uuid, next_commit(0), e.dataset_version, e.task_id, e.attempt, '', e.row_count, e.bytes, e.schema_hash,
               now(), e.files_hash, e.inputs_hash, e.code_hash))
      FROM entry e
    ON CONFLICT (dataset_uuid) DO UPDATE
       SET last_commit = next_commit(dataset_heads.last_commit),
           last_hash = (
               SELECT link_commit(dataset_heads.last_hash, NULL, commit_digest(
                          e.org_id, e.dataset_uuid, next_commit(dataset_heads.last_commit), e.dataset_version, e.task_id,
                          e.attempt, '', e.row_count, e.bytes, e.schema_hash, now(), e.files_hash, e.inputs_hash, e.code_hash))
                 FROM entry e)
    RETURNING new.last_commit, new.last_hash, old.last_hash AS previous_hash
)
INSERT INTO commits (dataset_uuid, number, org_id, dataset_version, task_id, attempt, row_count, bytes, schema_hash,
                     created_at, previous_hash, files_hash, inputs_hash, code_hash, hash, unchanged)
SELECT e.dataset_uuid, h.last_commit, e.org_id, e.dataset_version, e.task_id, e.attempt, e.row_count, e.bytes, e.schema_hash,
       now(), h.previous_hash, e.files_hash, e.inputs_hash, e.code_hash, h.last_hash, e.unchanged
  FROM entry e, head h
RETURNING number;

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
-- Current partitions that the new ones would replace, since which commit each is there, whether an attempt that was claimed
-- later than $5 wrote it, what it holds and since when. And any one partition: it shows of which kind they are.
WITH found AS (
    SELECT * FROM replaced_partitions($1, $2, $3, $4)
    UNION
    (SELECT p.partition_key, p.valid_from
       FROM partition_versions p
      WHERE p.dataset_version = $1 AND p.valid_to IS NULL
      LIMIT 1)
)
SELECT p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop, p.valid_from AS commit,
       a.started_at > $5 AS newer, p.content_hash, coalesce(p.content_since, p.valid_from) AS content_since
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
                                files, row_count, bytes, content_hash, content_since, column_hashes, addresses)
SELECT $1, n.key, $5, $6, $7, CASE WHEN n.start IS NOT NULL THEN int8range(n.start, n.stop) END, n.location, n.files::jsonb,
       n.row_count, n.bytes, n.content_hash, n.content_since, n.column_hashes::jsonb, n.addresses
  FROM unnest($2::text[], $3::bigint[], $4::bigint[], $8::text[], $9::text[], $10::bigint[], $11::bigint[], $12::bytea[],
              $13::bigint[], $14::text[], $15::bytea[])
       AS n (key, start, stop, location, files, row_count, bytes, content_hash, content_since, column_hashes, addresses);

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
