-- name: expire_leases
-- Leases that have run out: the attempt is given up, its number and token stay (S10), and a retry is planned while
-- attempts are left. An attempt that was heard of until its time was up used it up itself; one that fell silent was lost
-- by the platform, and counts against another limit. $3: so many workers may fall silent while they run this task and
-- nothing else; then it is taken for the cause.
WITH hands AS MATERIALIZED (
    -- Tasks that each worker runs, or ran a moment ago: leases of one worker do not expire together.
    SELECT worker_id FROM tasks WHERE status = 'Running'
     UNION ALL
    SELECT worker_id FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL AND fault = 'platform'
), lost AS (
    SELECT t.id, j.max_platform_failures, j.dag_name, j.name, j.source ->> 'kind' = 'always_on' AS restarts,
           j.retry_backoff_seconds, j.retry_backoff_max_seconds,
           (t.started_at + make_interval(secs => t.timeout_seconds) <= now()
            AND coalesce(t.last_heartbeat, t.started_at) > now() - make_interval(secs => 2 * j.heartbeat_interval_seconds))
           IS TRUE AS took_too_long,
           (SELECT count(*) = 1 FROM hands h WHERE h.worker_id = t.worker_id) AS alone
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
     WHERE t.status = 'Running' AND t.lease_expires_at <= now()
     ORDER BY t.lease_expires_at
     LIMIT $1
       FOR NO KEY UPDATE OF t SKIP LOCKED
), given_up AS (
    UPDATE tasks t
       SET status = 'Failed', completed_at = now(), lease_expires_at = NULL,
           fault = CASE WHEN l.took_too_long THEN 'job' ELSE 'platform' END::failure_fault,
           platform_failures = t.platform_failures + (NOT l.took_too_long)::int,
           lost_alone = t.lost_alone + (l.alone AND NOT l.took_too_long)::int,
           error_message = CASE WHEN l.took_too_long
                                THEN format('attempt %s ran longer than %s s', t.attempt, t.timeout_seconds)
                                ELSE format('the lease of attempt %s ran out: worker %s was not heard', t.attempt, t.worker_id)
                                END
                           || CASE WHEN NOT l.took_too_long AND l.alone AND t.lost_alone + 1 >= $3
                                   THEN format('; %s workers were lost while they ran this task and nothing else',
                                               t.lost_alone + 1)
                                   ELSE '' END,
           next_retry_at = CASE
               WHEN l.took_too_long AND t.attempt - t.skipped_attempts - t.platform_failures < t.max_attempts THEN now() + retry_wait(
                   l.retry_backoff_seconds, l.retry_backoff_max_seconds, t.attempt - t.skipped_attempts - t.platform_failures)
               WHEN NOT l.took_too_long AND NOT (l.alone AND t.lost_alone + 1 >= $3)
                    AND t.platform_failures + 1 < l.max_platform_failures
                   THEN now() + retry_wait(l.retry_backoff_seconds, l.retry_backoff_max_seconds, t.platform_failures + 1) END
      FROM lost l
     WHERE t.id = l.id AND (t.status = 'Running') IS TRUE
    RETURNING t.id, t.org_id, t.attempt, t.fault, t.error_message, t.next_retry_at, l.took_too_long, l.dag_name, l.name,
              t.next_retry_at IS NULL AND l.restarts IS NOT TRUE AS for_good
), history AS (
    UPDATE task_attempts h
       SET ended_at = now(), error_message = g.error_message, fault = g.fault,
           outcome = CASE WHEN g.took_too_long THEN 'TimedOut' ELSE 'LeaseExpired' END::attempt_outcome
      FROM given_up g
     WHERE h.task_id = g.id AND h.attempt = g.attempt
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT g.org_id, 'notify_failure', jsonb_build_object('task_id', g.id)
      FROM given_up g
     WHERE g.for_good
       AND EXISTS (SELECT FROM alert_definitions d WHERE d.org_id = g.org_id AND d.name = $2 AND d.enabled)
)
SELECT org_id AS org, dag_name AS dag, name AS job, id AS task, attempt, fault::text, error_message AS because, next_retry_at,
       for_good
  FROM given_up;

-- name: put_back
-- An attempt that the platform ended: a call that broke, or one that we ended ourselves. Another follows while the limit
-- for such ends is not reached: $5 seconds after the first of them, and later after each one more.
WITH ended AS (
    UPDATE tasks t
       SET status = 'Failed', completed_at = now(), lease_expires_at = NULL, error_message = $4, fault = 'platform',
           platform_failures = t.platform_failures + 1,
           next_retry_at = CASE WHEN t.platform_failures + 1 < j.max_platform_failures
                                THEN now() + retry_wait($5, j.retry_backoff_max_seconds, t.platform_failures + 1) END
      FROM jobs j
     WHERE t.id = $1
       AND j.id = t.job_id
       AND holds_lease(t, $2, $3) -- fence
       AND (t.status = 'Running') IS TRUE -- fence
    RETURNING t.id, t.org_id, t.attempt, t.fault, t.error_message, t.next_retry_at, j.dag_name, j.name,
              t.next_retry_at IS NULL AS for_good
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Failed', error_message = $4, fault = 'platform'
      FROM ended e
     WHERE h.task_id = e.id AND h.attempt = e.attempt
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT e.org_id, 'notify_failure', jsonb_build_object('task_id', e.id)
      FROM ended e
     WHERE e.for_good
       AND EXISTS (SELECT FROM alert_definitions d WHERE d.org_id = e.org_id AND d.name = $6 AND d.enabled)
)
SELECT org_id AS org, dag_name AS dag, name AS job, id AS task, attempt, fault::text, error_message AS because, next_retry_at,
       for_good
  FROM ended;

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
       SET status = 'Queued', attempt = next_attempt(t.attempt),
           skipped_attempts = t.skipped_attempts + next_attempt(t.attempt) - t.attempt - 1,
           queued_at = now(), next_retry_at = NULL, error_message = NULL,
           fault = NULL, lease_token = NULL, worker_id = NULL, started_at = NULL, last_heartbeat = NULL, progress = NULL,
           completed_at = NULL, completion_hash = NULL, completion_answer = NULL,
           woken_at = CASE WHEN j.max_concurrency IS NULL THEN now() END
      FROM due, jobs j
     WHERE t.id = due.id AND (t.status = 'Failed') IS TRUE AND j.id = t.job_id
    RETURNING t.id, t.org_id, t.job_id, t.priority, t.woken_at, j.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id)
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
           error_message = NULL, fault = NULL, cancel_reason = $3
     WHERE id = $1 AND org_id = $2
       AND (status IN ('Queued', 'Running')
            -- A task that reported its last failure has ended; one whose lease expired may still report.
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
       SET status = 'Queued', attempt = next_attempt(t.attempt),
           skipped_attempts = t.skipped_attempts + next_attempt(t.attempt) - t.attempt - 1,
           max_attempts = greatest(t.max_attempts, t.attempt + 1 - t.skipped_attempts - t.platform_failures),
           queued_at = now(), next_retry_at = NULL, error_message = NULL, fault = NULL, lease_token = NULL, worker_id = NULL,
           started_at = NULL, last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,
           completion_answer = NULL, woken_at = CASE WHEN j.max_concurrency IS NULL THEN now() END
      FROM jobs j
     WHERE t.id = $1 AND t.org_id = $2 AND t.status = 'Failed' AND j.id = t.job_id
    RETURNING t.id, t.org_id, t.job_id, t.priority, t.attempt, t.woken_at, j.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id)
      FROM again WHERE woken_at IS NOT NULL
)
SELECT attempt FROM again;


-- name: count_tasks_to_cancel
-- How many tasks of a DAG ($2), of a job ($3) and in a state ($4) would be canceled. Sources are left out: canceled, they
-- would start again.
SELECT count(*)
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
 WHERE t.org_id = $1
   AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.next_retry_at IS NOT NULL))
   AND ($2::text IS NULL OR j.dag_name = $2)
   AND ($3::text IS NULL OR j.name = $3)
   AND ($4::text IS NULL OR t.status = $4::text::task_status)
   AND j.source ->> 'kind' IS DISTINCT FROM 'always_on';

-- name: cancel_tasks
-- Ends up to $6 of those tasks, in the order in which every statement locks tasks. The states that they were in.
WITH chosen AS MATERIALIZED (
    SELECT t.id
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
     WHERE t.org_id = $1
       AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.next_retry_at IS NOT NULL))
       AND ($2::text IS NULL OR j.dag_name = $2)
       AND ($3::text IS NULL OR j.name = $3)
       AND ($4::text IS NULL OR t.status = $4::text::task_status)
       AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
     ORDER BY t.id
     LIMIT $6
       FOR NO KEY UPDATE OF t
), ended AS (
    UPDATE tasks t
       SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, next_retry_at = NULL,
           error_message = NULL, fault = NULL, cancel_reason = $5
      FROM chosen c
     WHERE t.id = c.id
       AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.next_retry_at IS NOT NULL))
    RETURNING t.id, t.attempt, old.status AS was
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Canceled', error_message = NULL
      FROM ended e
     WHERE h.task_id = e.id AND h.attempt = e.attempt AND h.ended_at IS NULL
)
SELECT was::text, count(*) FROM ended GROUP BY was;

-- name: count_tasks_to_retry
-- How many tasks of a DAG ($2) and of a job ($3) failed for good, of jobs of active versions. Sources are left out: they
-- are restarted.
SELECT count(*)
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id
  JOIN running_versions v
    ON v.org_id = j.org_id AND v.dag_name = j.dag_name AND v.dag_version_id = j.dag_version_id
 WHERE t.org_id = $1 AND t.status = 'Failed' AND t.next_retry_at IS NULL
   AND ($2::text IS NULL OR j.dag_name = $2)
   AND ($3::text IS NULL OR j.name = $3)
   AND j.source ->> 'kind' IS DISTINCT FROM 'always_on';

-- name: revive_tasks
-- One more attempt of up to $4 of those tasks; how many.
WITH chosen AS MATERIALIZED (
    SELECT t.id
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
      JOIN running_versions v
        ON v.org_id = j.org_id AND v.dag_name = j.dag_name AND v.dag_version_id = j.dag_version_id
     WHERE t.org_id = $1 AND t.status = 'Failed' AND t.next_retry_at IS NULL
       AND ($2::text IS NULL OR j.dag_name = $2)
       AND ($3::text IS NULL OR j.name = $3)
       AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
     ORDER BY t.id
     LIMIT $4
       FOR NO KEY UPDATE OF t
), again AS (
    UPDATE tasks t
       SET status = 'Queued', attempt = next_attempt(t.attempt),
           skipped_attempts = t.skipped_attempts + next_attempt(t.attempt) - t.attempt - 1,
           max_attempts = greatest(t.max_attempts, t.attempt + 1 - t.skipped_attempts - t.platform_failures),
           queued_at = now(), next_retry_at = NULL, error_message = NULL, fault = NULL, lease_token = NULL, worker_id = NULL,
           started_at = NULL, last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,
           completion_answer = NULL, woken_at = CASE WHEN j.max_concurrency IS NULL THEN now() END
      FROM chosen c, jobs j
     WHERE t.id = c.id AND j.id = t.job_id AND t.status = 'Failed' AND t.next_retry_at IS NULL
    RETURNING t.id, t.org_id, t.job_id, t.priority, t.woken_at, j.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id)
      FROM again WHERE woken_at IS NOT NULL
)
SELECT count(*) FROM again;
