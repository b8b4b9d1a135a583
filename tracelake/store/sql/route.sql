-- name: route_events
-- Everything due at once: events to their readers' tasks, once each, and a wake-up for each task that may start now.
-- One statement, so take, act and mark are one commit. A promise about an event that is not there is given up. $4: this
-- promise only.
WITH several AS (
    SELECT id, payload FROM outbox
     WHERE $4::bigint IS NULL AND status = 'Pending' AND kind = 'route_event' AND available_at <= now()
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), alone AS (
    SELECT id, payload FROM outbox
     WHERE id = $4 AND (status = 'Pending') IS TRUE AND kind = 'route_event' AND available_at <= now()
       FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id, (payload ->> 'event_id')::uuid AS event_id, payload -> 'jobs' AS jobs
      FROM (SELECT * FROM several UNION ALL SELECT * FROM alone) rows
), told AS (
    -- The generation may have left since the event was accepted: then it is kept for the record only. A row for every
    -- promise, so that none of what follows has to join one list with another: that would cost the square of the batch.
    SELECT due.id AS promise, due.jobs, e.id, e.org_id, e.dataset_uuid, e.dataset_version, e.kind, e.cursor_value,
           e.partition_key, e.block_range, e.commit_number, served.dataset_version IS NOT NULL AS is_served
      FROM due
      LEFT JOIN events e ON e.id = due.event_id
      LEFT JOIN datasets d ON d.id = e.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = e.dataset_uuid
            AND served.dataset_version = e.dataset_version
-- part: tasks_of_told
-- part: wake_ups_of_made
), marked AS (
    UPDATE events e
       SET routed_at = CASE WHEN told.is_served THEN coalesce(e.routed_at, now()) END,
           disposition = CASE WHEN told.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT told.is_served THEN 'the generation left before the event was routed' END
      FROM told
     WHERE e.id = told.id AND e.disposition = 'Route'
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN told.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN told.id IS NULL THEN 'there is no such event' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM told
     WHERE o.id = told.promise
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM made) AS tasks,
       (SELECT count(*) FROM made WHERE woken_at IS NULL) AS waiting,
       (SELECT array_agg(id) FROM owed) AS owed, (SELECT array_agg(payload::text) FROM owed) AS payloads,
       -- Need not be on disk to go on: if the server loses it, the promises to route are there again, and whoever builds
       -- on these tasks (a claim) waits for the disk, for what was written before as well.
       set_config('synchronous_commit', 'off', true) AS at_leisure;

-- name: route_invalidations
-- As for events: one task per reader over exactly the range that no longer holds, and a row that says who did it. $4:
-- this promise only.
WITH several AS (
    SELECT id, payload FROM outbox
     WHERE $4::bigint IS NULL AND status = 'Pending' AND kind = 'route_invalidation' AND available_at <= now()
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), alone AS (
    SELECT id, payload FROM outbox
     WHERE id = $4 AND (status = 'Pending') IS TRUE AND kind = 'route_invalidation' AND available_at <= now()
       FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id, (payload ->> 'invalidation_id')::uuid AS invalidation_id, payload -> 'jobs' AS jobs
      FROM (SELECT * FROM several UNION ALL SELECT * FROM alone) rows
), told AS (
    -- As above: of a generation that left since, it is kept for the record only.
    SELECT due.id AS promise, due.jobs, v.*, served.dataset_version IS NOT NULL AS is_served
      FROM due
      LEFT JOIN data_invalidations v ON v.id = due.invalidation_id
      LEFT JOIN datasets d ON d.id = v.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
), wanted AS (
    SELECT DISTINCT ON (v.id, j.id) v.id AS invalidation_id, v.org_id, v.dataset_uuid, v.dataset_version,
           lower(v.block_range) AS range_start, upper(v.block_range) - 1 AS range_end, block_range_key(v.block_range) AS key,
           v.follows_commit, j.id AS job_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency
      FROM told v
      JOIN job_inputs i ON i.dataset_uuid = v.dataset_uuid AND i.live AND i.triggers
      JOIN jobs j ON j.id = i.job_id AND j.org_id = v.org_id AND j.activation = 'reactive'
     WHERE v.is_served
       AND (v.jobs IS NULL OR v.jobs ? j.id::text) -- as above
), made AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, invalidation_id, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds,
           concat_ws(':', 'partition', dataset_uuid, dataset_version, key, 'invalidation', invalidation_id),
           invalidation_id, ARRAY[key],
           jsonb_strip_nulls(jsonb_build_object(
               'dataset_uuid', dataset_uuid, 'dataset_version', dataset_version, 'partition_key', key,
               'start', range_start, 'end', range_end, 'commit', follows_commit)),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM wanted
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM made
    ON CONFLICT DO NOTHING
-- part: wake_ups_of_made
), marked AS (
    UPDATE data_invalidations v
       SET routed_at = CASE WHEN told.is_served THEN coalesce(v.routed_at, now()) END,
           disposition = CASE WHEN told.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT told.is_served THEN 'the generation left before the invalidation was routed' END
      FROM told
     WHERE v.id = told.id AND v.disposition = 'Route' AND (told.is_served OR v.routed_at IS NULL)
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN told.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN told.id IS NULL THEN 'there is no such invalidation' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM told
     WHERE o.id = told.promise
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM made) AS tasks,
       (SELECT count(*) FROM made WHERE woken_at IS NULL) AS waiting,
       (SELECT array_agg(id) FROM owed) AS owed, (SELECT array_agg(payload::text) FROM owed) AS payloads;

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
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', id, 'runtime', runtime) FROM woken
)
SELECT count(*) FROM woken;
