-- name: reap
-- Leases that have run out: the attempt is given up, its number and token stay (S10), and a retry is planned while
-- attempts are left. Backoff doubles per attempt; half of it is chance, so that tasks lost together come back apart.
WITH lost AS (
    SELECT t.id FROM tasks t
     WHERE t.status = 'Running' AND t.lease_expires_at <= now()
     ORDER BY t.lease_expires_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), given_up AS (
    UPDATE tasks t
       SET status = 'Failed', completed_at = now(), lease_expires_at = NULL,
           error_message = CASE WHEN t.started_at + make_interval(secs => t.timeout_seconds) <= now()
                                THEN format('attempt %s ran longer than %s s', t.attempt, t.timeout_seconds)
                                ELSE format('the lease of attempt %s ran out: worker %s was not heard', t.attempt, t.worker_id) END,
           next_retry_at = CASE WHEN t.attempt < t.max_attempts THEN now() + make_interval(secs =>
               least(j.retry_backoff_seconds * 2.0 ^ least(t.attempt - 1, 30), j.retry_backoff_max_seconds)
               * (0.5 + random() / 2)) END
      FROM lost, jobs j
     WHERE t.id = lost.id AND j.id = t.job_id
    RETURNING t.id, t.org_id, t.job_id, t.attempt, t.error_message, t.timeout_seconds, t.started_at, t.next_retry_at,
              j.dag_name, j.name
), history AS (
    UPDATE task_attempts h
       SET ended_at = now(), error_message = g.error_message,
           outcome = CASE WHEN g.started_at + make_interval(secs => g.timeout_seconds) <= now()
                          THEN 'TimedOut' ELSE 'LeaseExpired' END::attempt_outcome
      FROM given_up g
     WHERE h.task_id = g.id AND h.attempt = g.attempt
)
SELECT org_id AS org, dag_name AS dag, name AS job, id AS task, attempt, error_message AS because, next_retry_at FROM given_up;

-- name: put_back
-- An attempt that never began, or that we ended ourselves: it does not count, and another follows soon.
WITH ended AS (
    UPDATE tasks t
       SET status = 'Failed', completed_at = now(), lease_expires_at = NULL, error_message = $4,
           max_attempts = t.max_attempts + 1, next_retry_at = now() + $5::interval
     WHERE true
       AND t.attempt = $2 -- fence
       AND t.lease_token = $3 -- fence
       AND (t.status = 'Running') IS TRUE -- fence
       AND t.id = $1
    RETURNING t.id, t.attempt
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Failed', error_message = $4
      FROM ended e
     WHERE h.task_id = e.id AND h.attempt = e.attempt
)
SELECT count(*) FROM ended;

-- name: functions_of
-- What runs as a function, called by any process of a machine.
SELECT id, attempt, lease_token, worker_id FROM tasks WHERE status = 'Running' AND starts_with(worker_id, $1);

-- name: retry_due
-- Waiting retries whose time has come: the next attempt, without the old token, and its wake-up.
WITH due AS (
    SELECT id FROM tasks
     WHERE status = 'Failed' AND next_retry_at <= now()
     ORDER BY next_retry_at
     LIMIT $1
       FOR NO KEY UPDATE SKIP LOCKED
), again AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = t.attempt + 1, queued_at = now(), next_retry_at = NULL, error_message = NULL,
           lease_token = NULL, worker_id = NULL, started_at = NULL, last_heartbeat = NULL, progress = NULL,
           completed_at = NULL, completion_hash = NULL, completion_answer = NULL,
           woken_at = CASE WHEN j.max_concurrency IS NULL THEN now() END
      FROM due, jobs j
     WHERE t.id = due.id AND j.id = t.job_id
    RETURNING t.id, t.org_id, t.woken_at, j.runtime
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', id, 'runtime', runtime)
      FROM again WHERE woken_at IS NOT NULL
)
SELECT count(*) FROM again;

-- name: next_lifecycle
-- How long until a lease may run out or a retry is due.
SELECT extract(epoch FROM least(
           (SELECT min(lease_expires_at) FROM tasks WHERE status = 'Running'),
           (SELECT min(next_retry_at) FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL)
       ) - now())::float8;

-- name: cancel_task
-- A person ends a task that has not ended; its attempt, if it runs, can commit nothing any more. The state that
-- it was in, or no row.
WITH ended AS (
    UPDATE tasks
       SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, next_retry_at = NULL,
           error_message = NULL, cancel_reason = $3
     WHERE id = $1 AND org_id = $2
       AND (status IN ('Queued', 'Running')
            -- What has reported its last failure is over; what was only not heard of may still come back.
            OR (status = 'Failed' AND (next_retry_at IS NOT NULL OR completion_hash IS NULL)))
    RETURNING id, attempt, old.status AS was
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Canceled', error_message = NULL
      FROM ended e
     WHERE h.task_id = e.id AND h.attempt = e.attempt AND h.ended_at IS NULL
)
SELECT was::text FROM ended;

-- name: revive_task
-- A person asks for one more attempt of a task that failed.
WITH again AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = t.attempt + 1, max_attempts = greatest(t.max_attempts, t.attempt + 1),
           queued_at = now(), next_retry_at = NULL, error_message = NULL, lease_token = NULL, worker_id = NULL,
           started_at = NULL, last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,
           completion_answer = NULL, woken_at = CASE WHEN j.max_concurrency IS NULL THEN now() END
      FROM jobs j
     WHERE t.id = $1 AND t.org_id = $2 AND t.status = 'Failed' AND j.id = t.job_id
    RETURNING t.id, t.org_id, t.attempt, t.woken_at, j.runtime
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', jsonb_build_object('task_id', id, 'runtime', runtime)
      FROM again WHERE woken_at IS NOT NULL
)
SELECT attempt FROM again;
