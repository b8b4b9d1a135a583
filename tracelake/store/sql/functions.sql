-- Tasks of runtimes whose tasks the Dispatcher calls as functions. They wait as Queued and woken, until a place is free.

-- name: functions_of
-- Tasks that run as functions, called by any process of a machine.
SELECT id, attempt, lease_token, worker_id FROM tasks WHERE status = 'Running' AND starts_with(worker_id, $1);

-- name: functions_wait
-- Whether any waits.
SELECT EXISTS (
    SELECT FROM jobs j
     WHERE j.runtime = ANY ($1::text[])
       AND EXISTS (SELECT FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued' AND t.woken_at IS NOT NULL));

-- name: next_functions
-- Whose turn it is, of runtimes $1 and priority $6: as many as there are places ($2 in all, $3 of one organisation) that no
-- replica's calls take, and at most $4. Organisations take turns: who has the fewest running is next. So do the jobs of an
-- organisation. The organisations of $5 wait. The tasks of $7 are about to be called, and none of them is chosen again.
WITH running AS (
    SELECT r.org_id, count(*) AS calls
      FROM (SELECT t.org_id
              FROM tasks t
              JOIN jobs j ON j.id = t.job_id
             WHERE t.status = 'Running' AND j.runtime = ANY ($1::text[])
            UNION ALL
            SELECT t.org_id FROM tasks t WHERE t.id = ANY ($7::uuid[])) r
     GROUP BY r.org_id
), first_of_jobs AS (
    SELECT t.id, j.org_id, t.queued_at, row_number() OVER (PARTITION BY j.id ORDER BY t.queued_at, t.id) AS turn_of_job
      FROM jobs j
      CROSS JOIN LATERAL (
          SELECT w.id, w.queued_at FROM tasks w
           WHERE w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NOT NULL AND w.priority = $6::work_priority
           ORDER BY w.queued_at
           LIMIT $4) t
     WHERE j.runtime = ANY ($1::text[]) AND NOT j.org_id = ANY ($5::uuid[])
), turns AS (
    SELECT f.id, f.queued_at, coalesce(r.calls, 0)
           + row_number() OVER (PARTITION BY f.org_id ORDER BY f.turn_of_job, f.queued_at, f.id) AS turn
      FROM first_of_jobs f LEFT JOIN running r ON r.org_id = f.org_id
)
SELECT id FROM turns
 WHERE turn <= $3
 ORDER BY turn, queued_at, id
 LIMIT least($4, greatest(0, $2 - (SELECT coalesce(sum(calls), 0) FROM running)));

-- name: release
-- A claim is undone: nothing has run under it, so it was no attempt, and its task keeps its place among those that wait.
WITH back AS (
    UPDATE tasks t
       SET status = 'Queued', lease_token = NULL, worker_id = NULL, started_at = NULL, lease_expires_at = NULL,
           last_heartbeat = NULL, progress = NULL
     WHERE t.id = $1
       AND holds_lease(t, $2, $3) -- fence
       AND (t.status = 'Running') IS TRUE -- fence
    RETURNING t.id, t.attempt
), history AS (
    DELETE FROM task_attempts h USING back b WHERE h.task_id = b.id AND h.attempt = b.attempt
), inputs AS (
    -- Pinned again by the next claim, as of then.
    DELETE FROM task_inputs i USING back b WHERE i.task_id = b.id AND i.attempt = b.attempt
)
SELECT count(*) FROM back;
