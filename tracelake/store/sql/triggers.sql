-- name: trigger_progress
-- What has become of a trigger ($2, of organisation $1): its tasks and, with $3, all that their results trigger. A task is
-- found by the key under which routing creates it, so one that an earlier event created counts too. NULL: no such trigger.
WITH RECURSIVE triggers AS (
    SELECT * FROM events WHERE org_id = $1 AND producer_run_id = $2 AND origin = 'manual'
), fired AS (
    -- A source whose operator works has a task of its own instead of events.
    SELECT t.id
      FROM jobs j JOIN tasks t ON t.job_id = j.id AND t.dedupe_key = 'fire:' || $2::uuid
     WHERE j.org_id = $1 AND j.activation = 'source'
), followed (id) AS (
    (SELECT id FROM fired
    UNION ALL
    SELECT t.id
      FROM triggers e
      JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
      JOIN tasks t ON t.job_id = j.job_id
                  AND t.dedupe_key = event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value,
                                                    e.partition_key, e.block_range, e.commit_number))
    UNION
    SELECT n.id
      FROM followed f
      CROSS JOIN LATERAL (
          SELECT p.superseded_by AS id FROM tasks p WHERE p.id = f.id AND p.superseded_by IS NOT NULL
          UNION ALL
          SELECT t.id
            FROM events e
            JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
            JOIN tasks t ON t.job_id = j.job_id
                        AND t.dedupe_key = event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value,
                                                          e.partition_key, e.block_range, e.commit_number)
           WHERE $3 AND e.producer_run_id = f.id AND e.org_id = $1) n
), tasks_of AS (
    SELECT t.id, j.dag_name AS dag, j.name AS job, t.status::text AS status, t.superseded_by IS NOT NULL AS is_superseded,
           t.status = 'Failed' AND t.next_retry_at IS NOT NULL AS is_retried,
           coalesce(t.error_message, t.cancel_reason) AS reason
      FROM followed f
      JOIN tasks t ON t.id = f.id AND t.org_id = $1
      JOIN jobs j ON j.id = t.job_id
), unrouted AS (
    SELECT e.id,
           EXISTS (SELECT FROM outbox o
                    WHERE o.status = 'Failed' AND o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text) AS is_failed
      FROM (SELECT * FROM triggers
            UNION ALL
            SELECT e.* FROM followed f JOIN events e ON e.producer_run_id = f.id AND e.org_id = $1 WHERE $3) e
     WHERE e.disposition = 'Route'
       AND (e.routed_at IS NULL
            OR EXISTS (SELECT FROM triggered_jobs j JOIN held_events h ON h.job_id = j.job_id AND h.event_id = e.id
                        WHERE j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id))
), batches AS (
    SELECT b.status FROM tasks_of t JOIN buffer_publishes b ON b.task_id = t.id AND b.org_id = $1
), failures AS (
    SELECT * FROM tasks_of
     WHERE (status = 'Failed' AND NOT is_retried) OR (status = 'Canceled' AND NOT is_superseded)
), counts AS (
    SELECT (SELECT count(*) FROM tasks_of) AS tasks,
           (SELECT count(*) FROM tasks_of WHERE status = 'Queued' OR is_retried) AS queued,
           (SELECT count(*) FROM tasks_of WHERE status = 'Running') AS running,
           (SELECT count(*) FROM tasks_of WHERE status = 'Completed' OR is_superseded) AS completed,
           (SELECT count(*) FROM failures) AS failed,
           (SELECT count(*) FROM unrouted WHERE NOT is_failed) AS waiting_events,
           (SELECT count(*) FROM unrouted WHERE is_failed) AS failed_events,
           (SELECT count(*) FROM batches WHERE $3 AND status = 'Accepted') AS waiting_batches,
           (SELECT count(*) FROM batches WHERE status = 'Dead') AS dead_batches
)
SELECT (to_jsonb(c) || jsonb_build_object(
           'request_id', $2::uuid,
           'downstream', $3::boolean,
           'ended', c.queued + c.running + c.waiting_events + c.waiting_batches = 0,
           'succeeded', c.completed = c.tasks AND c.waiting_events + c.failed_events + c.waiting_batches + c.dead_batches = 0,
           'failures', coalesce((SELECT jsonb_agg(jsonb_build_object('id', id, 'dag', dag, 'job', job, 'status', status,
                                                                     'reason', reason) ORDER BY id)
                                   FROM (SELECT * FROM failures ORDER BY id LIMIT $4) f), '[]')))::text
  FROM counts c
 WHERE EXISTS (SELECT FROM triggers) OR EXISTS (SELECT FROM fired);
