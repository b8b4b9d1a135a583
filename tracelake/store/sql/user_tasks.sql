-- name: list_tasks
-- A page of tasks, the newest first. Ids rise with time, so a page starts below the last id of the page before.
SELECT t.id, j.dag_name AS dag, j.name AS job, t.status::text, t.attempt, t.max_attempts, t.platform_failures,
       t.skipped_attempts, t.partitions,
       t.created_at,
       t.started_at, t.completed_at, t.next_retry_at, t.worker_id AS worker,
       coalesce(t.error_message, t.cancel_reason) AS reason, t.fault::text,
       (SELECT count(*) FROM buffer_publishes b WHERE b.task_id = t.id AND b.status = 'Dead') AS dead_batches
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.org_id = t.org_id
 WHERE t.org_id = $1
   AND ($2::text IS NULL OR t.status = $2::text::task_status)
   AND ($3::text IS NULL OR j.dag_name = $3)
   AND ($4::text IS NULL OR j.name = $4)
   AND ($5::uuid IS NULL OR t.id < $5)
   AND ($6::uuid IS NULL OR t.id BETWEEN $6 AND $7::uuid)
 ORDER BY t.id DESC
 LIMIT $8;

-- name: failed_tasks
-- Tasks that have failed for good within a day, the newest first, and how many there are. Sources are left out: they are
-- restarted.
SELECT t.id, j.dag_name AS dag, j.name AS job, t.status::text, t.attempt, t.max_attempts, t.platform_failures,
       t.skipped_attempts, t.partitions,
       t.created_at, t.started_at, t.completed_at, t.next_retry_at, t.worker_id AS worker, t.error_message AS reason,
       t.fault::text, (SELECT count(*) FROM buffer_publishes b WHERE b.task_id = t.id AND b.status = 'Dead') AS dead_batches,
       count(*) OVER () AS failed
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.org_id = t.org_id
 WHERE t.org_id = $1 AND t.status = 'Failed' AND t.next_retry_at IS NULL
   AND t.completed_at > now() - interval '1 day' AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
 ORDER BY t.completed_at DESC
 LIMIT $2;

-- name: show_task
-- A task with its cause, attempts, inputs, commits and batches; of dead batches the newest $3.
SELECT jsonb_build_object(
           'id', t.id, 'dag', j.dag_name, 'job', j.name, 'operator', j.operator, 'runtime', j.runtime,
           'dag_version_id', j.dag_version_id, 'status', t.status, 'priority', t.priority, 'attempt', t.attempt,
           'max_attempts', t.max_attempts, 'platform_failures', t.platform_failures, 'skipped_attempts', t.skipped_attempts,
           'max_platform_failures', j.max_platform_failures, 'fault', t.fault, 'timeout_seconds', t.timeout_seconds, 'dedupe_key', t.dedupe_key,
           'partitions', t.partitions, 'created_at', t.created_at, 'queued_at', t.queued_at, 'woken_at', t.woken_at,
           'started_at', t.started_at, 'completed_at', t.completed_at, 'lease_expires_at', t.lease_expires_at,
           'last_heartbeat', t.last_heartbeat, 'next_retry_at', t.next_retry_at, 'worker', t.worker_id,
           'progress', t.progress, 'error', t.error_message, 'cancel_reason', t.cancel_reason,
           'superseded_by', t.superseded_by, 'history', t.history, 'node_requests', t.node_requests,
           'bytes_written', t.bytes_written,
           'memoized_from', t.memoized_from, 'outputs', t.outputs,
           'event', (
               SELECT jsonb_build_object(
                          'id', e.id, 'origin', e.origin, 'dataset', coalesce(d.name, d.id::text),
                          'dataset_uuid', e.dataset_uuid, 'dataset_version', e.dataset_version, 'scope', e.scope,
                          'commit', e.commit_number, 'producer_task_id', e.producer_task_id,
                          'created_at', e.created_at, 'routed_at', e.routed_at)
                 FROM events e JOIN datasets d ON d.id = e.dataset_uuid
                WHERE e.id = t.event_id AND e.org_id = t.org_id),
           'invalidation', (
               SELECT jsonb_build_object(
                          'id', v.id, 'dataset', coalesce(d.name, d.id::text), 'dataset_uuid', v.dataset_uuid,
                          'scope', v.partition_key,
                          'reason', v.reason, 'producer_task_id', v.producer_task_id, 'created_at', v.created_at)
                 FROM data_invalidations v JOIN datasets d ON d.id = v.dataset_uuid
                WHERE v.id = t.invalidation_id AND v.org_id = t.org_id),
           'attempts', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'attempt', h.attempt, 'worker', h.worker_id, 'started_at', h.started_at,
                          'ended_at', h.ended_at, 'outcome', h.outcome, 'fault', h.fault, 'late', h.late, 'error', h.error_message)
                          ORDER BY h.attempt)
                 FROM task_attempts h WHERE h.task_id = t.id AND h.org_id = t.org_id), '[]'),
           'inputs', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'attempt', i.attempt, 'dataset', coalesce(d.name, d.id::text),
                          'dataset_uuid', i.input_dataset_uuid, 'dataset_version', i.input_dataset_version,
                          'partition', i.input_partition_key, 'commit', i.input_commit)
                          ORDER BY i.attempt, i.input_dataset_uuid, i.input_partition_key)
                 FROM task_inputs i JOIN datasets d ON d.id = i.input_dataset_uuid
                WHERE i.task_id = t.id AND i.org_id = t.org_id), '[]'),
           'commits', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'dataset', coalesce(d.name, d.id::text), 'dataset_uuid', c.dataset_uuid,
                          'dataset_version', c.dataset_version, 'commit', c.number, 'attempt', c.attempt,
                          'rows', c.row_count, 'bytes', c.bytes, 'unchanged', c.unchanged, 'committed_at', c.created_at)
                          ORDER BY c.created_at, c.dataset_uuid, c.number)
                 FROM commits c JOIN datasets d ON d.id = c.dataset_uuid
                WHERE c.task_id = t.id AND c.org_id = t.org_id), '[]'),
           'batches', (
               SELECT jsonb_build_object(
                          'accepted', count(*) FILTER (WHERE b.status = 'Accepted'),
                          'committed', count(*) FILTER (WHERE b.status = 'Committed'),
                          'dead', count(*) FILTER (WHERE b.status = 'Dead'))
                 FROM buffer_publishes b WHERE b.task_id = t.id AND b.org_id = t.org_id),
           'dead_batches', coalesce((
               SELECT jsonb_agg(jsonb_build_object(
                          'publish_id', b.id, 'dataset_uuid', b.dataset_uuid, 'dataset', s.name,
                          'dag', s.producer_dag_name, 'task_id', b.task_id, 'attempt', b.attempt,
                          'batch_uri', coalesce(b.repaired_uri, b.batch_uri), 'content_type', b.content_type,
                          'line', b.error_line, 'reason', b.error_message, 'replays', b.replays,
                          'published_at', b.created_at, 'died_at', b.settled_at) ORDER BY b.id DESC)
                 FROM (SELECT * FROM buffer_publishes
                        WHERE task_id = t.id AND org_id = t.org_id AND status = 'Dead'
                        ORDER BY id DESC LIMIT $3) b
                 JOIN datasets s ON s.id = b.dataset_uuid), '[]')
       )::text
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.org_id = t.org_id
 WHERE t.id = $1 AND t.org_id = $2;

-- name: task_status
-- The status of a task.
SELECT status::text FROM tasks WHERE id = $1 AND org_id = $2;
