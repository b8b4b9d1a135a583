-- name: route_events
-- Routes all due events: creates a task for each job that they trigger, once, and a wake-up for each that may start now.
-- One statement, so taking, acting and marking are one commit. An entry whose event does not exist is given up. $4: this
-- entry only, with a limit of 1. Tasks and wake-ups are created as in `complete_tasks`, by the same INSERTs: a function that
-- writes would run in a snapshot of its own, and could not see the rows that this statement is about.
WITH due AS (
    SELECT id, (payload ->> 'event_id')::uuid AS event_id, payload -> 'jobs' AS jobs
      FROM outbox
     WHERE status = 'Pending' AND kind = 'route_event' AND available_at <= now() AND ($4::bigint IS NULL OR id = $4)
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), due_events AS (
    -- The generation may have been replaced since the event was accepted: then it is for the record only. A row for every
    -- entry, so that none of what follows has to join one list with another: that would cost the square of the batch.
    SELECT due.id AS entry, due.jobs, e.id, e.org_id, e.dataset_uuid, e.dataset_version, e.kind, e.cursor_value,
           e.partition_key, e.block_range, e.commit_number, served.dataset_version IS NOT NULL AS is_served
      FROM due
      LEFT JOIN events e ON e.id = due.event_id
      LEFT JOIN datasets d ON d.id = e.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = e.dataset_uuid
            AND served.dataset_version = e.dataset_version
), triggered AS (
    SELECT DISTINCT ON (e.id, j.job_id) e.*, j.job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency,
           event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range,
                          e.commit_number) AS dedupe_key
      FROM due_events e
      JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
     WHERE e.is_served
       AND (e.jobs IS NULL OR e.jobs ? j.job_id::text) -- routed again for jobs that missed it, and for no others
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
), marked AS (
    UPDATE events e
       SET routed_at = CASE WHEN d.is_served THEN coalesce(e.routed_at, now()) END,
           disposition = CASE WHEN d.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT d.is_served THEN 'the generation left before the event was routed' END
      FROM due_events d
     WHERE e.id = d.id AND e.disposition = 'Route'
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN d.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN d.id IS NULL THEN 'there is no such event' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM due_events d
     WHERE o.id = d.entry
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM created) AS tasks,
       (SELECT array_agg(id) FROM wake_ups) AS entries, (SELECT array_agg(payload::text) FROM wake_ups) AS payloads
  -- Not waited for on disk: if the server loses it, the entries are pending again; and a claim of these tasks waits for
  -- the disk, for what was written before as well.
  FROM set_config('synchronous_commit', 'off', true);

-- name: route_invalidations
-- As for events: one task for each job over exactly the invalidated range, and a row that names the task. $4: this entry
-- only.
WITH due AS (
    SELECT id, (payload ->> 'invalidation_id')::uuid AS invalidation_id, payload -> 'jobs' AS jobs
      FROM outbox
     WHERE status = 'Pending' AND kind = 'route_invalidation' AND available_at <= now()
       AND ($4::bigint IS NULL OR id = $4)
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), due_invalidations AS (
    -- As above: for the record only if the generation has been replaced.
    SELECT due.id AS entry, due.jobs, v.*, served.dataset_version IS NOT NULL AS is_served
      FROM due
      LEFT JOIN data_invalidations v ON v.id = due.invalidation_id
      LEFT JOIN datasets d ON d.id = v.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
), triggered AS (
    SELECT DISTINCT ON (v.id, j.job_id) v.id AS invalidation_id, v.org_id, v.dataset_uuid, v.dataset_version,
           v.block_range, block_range_key(v.block_range) AS key, v.follows_commit, j.job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency
      FROM due_invalidations v
      JOIN triggered_jobs j ON j.dataset_uuid = v.dataset_uuid AND j.org_id = v.org_id
     WHERE v.is_served
       AND (v.jobs IS NULL OR v.jobs ? j.job_id::text) -- as for events
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, invalidation_id, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds,
           concat_ws(':', 'partition', dataset_uuid, dataset_version, key, 'invalidation', invalidation_id),
           invalidation_id, ARRAY[key],
           trigger_of(dataset_uuid, dataset_version, NULL, key, block_range, follows_commit),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM triggered
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM created
    ON CONFLICT DO NOTHING
), wake_ups AS (
    -- Taken by the replica that writes them, which publishes them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT c.org_id, 'enqueue_task', jsonb_build_object('task_id', c.id, 'runtime', j.runtime),
           'Processing', $2, now() + $3::interval, 1
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
    RETURNING id, payload
), marked AS (
    UPDATE data_invalidations v
       SET routed_at = CASE WHEN d.is_served THEN coalesce(v.routed_at, now()) END,
           disposition = CASE WHEN d.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT d.is_served THEN 'the generation left before the invalidation was routed' END
      FROM due_invalidations d
     WHERE v.id = d.id AND v.disposition = 'Route' AND (d.is_served OR v.routed_at IS NULL)
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN d.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN d.id IS NULL THEN 'there is no such invalidation' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM due_invalidations d
     WHERE o.id = d.entry
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM created) AS tasks,
       (SELECT array_agg(id) FROM wake_ups) AS entries, (SELECT array_agg(payload::text) FROM wake_ups) AS payloads;

-- name: lock_slots
-- The jobs with tasks that wait for a slot (max_concurrency), locked until the transaction ends: replicas count the slots
-- of a job one after the other. In a statement of its own, because what `wake_waiting` counts must be as it is under the
-- lock, and a statement sees the past from before it waited.
SELECT j.id FROM jobs j
 WHERE j.id IN (SELECT DISTINCT job_id FROM tasks WHERE status = 'Queued' AND woken_at IS NULL)
 ORDER BY j.id
   FOR NO KEY UPDATE OF j;

-- name: wake_waiting
-- Tasks that wait for a slot of these jobs ($1, locked by `lock_slots`) get one each, the most urgent first, as far as
-- slots go.
WITH full_jobs AS (
    SELECT j.id, j.runtime, j.max_concurrency - (
               SELECT count(*) FROM tasks f
                WHERE f.job_id = j.id AND f.status IN ('Queued', 'Running') AND f.woken_at IS NOT NULL) AS free
      FROM jobs j
     WHERE j.id = ANY ($1::uuid[])
), turn AS (
    SELECT t.id, t.org_id, j.runtime
      FROM full_jobs j
      CROSS JOIN LATERAL (
          SELECT w.id, w.org_id FROM tasks w
           WHERE w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NULL
           ORDER BY w.priority, w.queued_at
           LIMIT greatest(coalesce(j.free, 1000000), 0)) t
), woken AS (
    UPDATE tasks t SET woken_at = now() FROM turn
     WHERE t.id = turn.id AND t.status = 'Queued' AND t.woken_at IS NULL
    RETURNING t.id, t.org_id, turn.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', id, 'runtime', runtime) FROM woken
)
SELECT count(*) FROM woken;
