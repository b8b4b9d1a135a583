-- name: insert_schedules
-- Inserts the cron sources of a version ($2) that is activated, due at once. A source whose schedule is unchanged since
-- the former version ($3) goes on after the last slot that was decided; any other begins now.
INSERT INTO source_schedules (job_id, org_id, decided_until, due_at)
SELECT j.id, j.org_id, coalesce(s.decided_until, now()), now()
  FROM jobs j
  LEFT JOIN jobs old
         ON old.dag_version_id = $3 AND old.name = j.name
        AND (old.source ->> 'schedule', old.source ->> 'tz', old.source ->> 'dst')
            IS NOT DISTINCT FROM (j.source ->> 'schedule', j.source ->> 'tz', j.source ->> 'dst')
  LEFT JOIN source_schedules s ON s.job_id = old.id
 WHERE j.org_id = $1 AND j.dag_version_id = $2 AND j.source ->> 'kind' = 'cron'
ON CONFLICT (job_id) DO NOTHING;

-- name: find_active_schedules
-- What time it is, and the cron sources of the active version of a DAG ($2), by the names of their jobs.
SELECT clock_timestamp() AS now,
       coalesce((SELECT jsonb_object_agg(j.name, j.source)
                   FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
                  WHERE c.org_id = $1 AND c.dag_name = $2 AND j.source ->> 'kind' = 'cron'), '{}') AS active;

-- name: delete_schedules
-- Deletes the schedules of versions of a DAG that are no longer active: they have no more slots.
DELETE FROM source_schedules s
 USING jobs j
 WHERE j.id = s.job_id AND j.org_id = $1 AND j.dag_name = $2 AND j.dag_version_id <> $3;

-- name: lock_due
-- The organisations whose schedules are due, locked against activations until the transaction ends.
SELECT o.org_id, pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || o.org_id, 0))
  FROM (SELECT DISTINCT s.org_id FROM source_schedules s WHERE s.due_at <= now() ORDER BY s.org_id) o;

-- name: take_due
-- Takes schedules of these organisations ($1) that are due, with what decides about their slots. A schedule that another
-- Dispatcher has taken is left to it.
SELECT s.job_id, s.org_id, j.dag_name, j.name AS job_name, j.operator, j.source::text AS source, s.decided_until,
       clock_timestamp() AS now,
       EXISTS (SELECT FROM pauses p
                WHERE p.job_id = j.id AND p.reason IN ('manual', 'failure') AND p.until IS NULL) AS paused,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running'))
       + (SELECT count(*) FROM tasks t
           WHERE t.job_id = j.id AND t.status = 'Failed' AND t.next_retry_at IS NOT NULL) AS open_tasks,
       (SELECT t.id
          FROM (SELECT x.task_id FROM source_slots x
                 WHERE x.org_id = j.org_id AND x.dag_name = j.dag_name AND x.job_name = j.name AND x.task_id IS NOT NULL
                 ORDER BY x.slot DESC LIMIT 10) AS recent
          JOIN tasks t ON t.id = recent.task_id
         WHERE t.status = 'Failed' AND t.next_retry_at IS NULL
           AND t.completed_at > coalesce((SELECT max(p.until) FROM pauses p WHERE p.job_id = j.id), '-infinity')
         LIMIT 1) AS failed_task
  FROM source_schedules s
  JOIN jobs j ON j.id = s.job_id
  JOIN dag_current_versions c ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id = j.dag_version_id
 WHERE s.org_id = ANY ($1::uuid[]) AND s.due_at <= now()
 ORDER BY s.job_id
 LIMIT $2
   FOR UPDATE OF s SKIP LOCKED;

-- name: store_slots
-- Stores decided slots, each once. One that fires makes a task of its source ($4), or an event for each output of it,
-- with the entries of the outbox for both.
WITH decided AS MATERIALIZED (
    SELECT d.*, j.org_id, j.dag_name, j.name, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime,
           j.dag_version_id, j.output_datasets,
           CASE WHEN d.reason IS NULL AND d.works THEN uuidv7() END AS task_id
      FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::boolean[]) AS d (job_id, slot, reason, works)
      JOIN jobs j ON j.id = d.job_id
), stored AS (
    INSERT INTO source_slots (org_id, dag_name, job_name, slot, job_id, reason, task_id)
    SELECT org_id, dag_name, name, slot, job_id, reason::slot_reason, task_id FROM decided
    ON CONFLICT DO NOTHING
    RETURNING job_id, slot
), fired AS (
    SELECT d.* FROM decided d JOIN stored s ON s.job_id = d.job_id AND s.slot = d.slot WHERE d.reason IS NULL
), created AS (
    INSERT INTO tasks (id, org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, input_versions, woken_at)
    SELECT task_id, org_id, job_id, priority, max_attempts, timeout_seconds, slot_key(slot),
           fire_of('cron', slot, NULL, NULL, NULL),
           CASE WHEN max_concurrency IS NULL AND NOT held_by_pressure(job_id) THEN now() END
      FROM fired WHERE works
     ORDER BY job_id, slot
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
), emitted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value)
    SELECT f.org_id, 'cron', 'cursor', fire_run(f.org_id, f.dag_name, f.name, slot_key(f.slot)), o.id,
           served.dataset_version, 'cursor:' || extract(epoch FROM f.slot)::bigint, extract(epoch FROM f.slot)::bigint
      FROM fired f
      CROSS JOIN LATERAL unnest(f.output_datasets) AS o (id)
      JOIN dag_version_datasets served ON served.dag_version_id = f.dag_version_id AND served.dataset_uuid = o.id
     WHERE NOT f.works
     ORDER BY f.slot
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid
), routes AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM emitted
)
SELECT (SELECT count(*) FROM fired) AS fired, (SELECT count(*) FROM stored) AS stored;

-- name: decided
-- Notes how far schedules are decided, and when each is next due.
UPDATE source_schedules s
   SET decided_until = d.decided_until, due_at = d.due_at
  FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS d (job_id, decided_until, due_at)
 WHERE s.job_id = d.job_id;

-- name: next_due
-- Seconds until a schedule is due.
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM source_schedules;

-- name: pause_failed
-- Pauses sources ($1) because a task of each ($2) has failed.
INSERT INTO pauses (org_id, job_id, priority, reason, cause_task_id)
SELECT j.org_id, j.id, 'normal', 'failure', f.task_id
  FROM unnest($1::uuid[], $2::uuid[]) AS f (job_id, task_id) JOIN jobs j ON j.id = f.job_id
ON CONFLICT (job_id, priority, reason, cause_job_id) WHERE until IS NULL DO NOTHING;

-- name: prune_slots
-- Deletes slots that were decided longer ago than $1, at most $2.
WITH old AS (
    SELECT org_id, dag_name, job_name, slot FROM source_slots WHERE decided_at < now() - $1::interval
     ORDER BY decided_at LIMIT $2
), deleted AS (
    DELETE FROM source_slots s USING old o
     WHERE (s.org_id, s.dag_name, s.job_name, s.slot) = (o.org_id, o.dag_name, o.job_name, o.slot)
    RETURNING s.slot
)
SELECT count(*) FROM deleted;
