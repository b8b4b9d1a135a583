-- name: claim_tasks
-- Queued to Running, for every task asked for at once: lease, history and pinned inputs in one statement. A row for
-- each that was claimed. $4: the runtimes whose tasks the caller may claim; NULL: any.
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[]) AS a (task_id, worker_id, lease_token, runtimes)
     ORDER BY task_id -- every batch locks its tasks in this order: no two wait for each other
), claimed AS (
    UPDATE tasks t
       SET status = 'Running',
           worker_id = a.worker_id,
           lease_token = a.lease_token,
           started_at = now(),
           last_heartbeat = now(),
           lease_expires_at = now() + make_interval(
               secs => least(j.heartbeat_timeout_seconds, t.timeout_seconds)
           )
      FROM asked a, jobs j
     WHERE t.id = a.task_id
       AND j.id = t.job_id
       -- IS TRUE keeps the planner from walking the index of all queued tasks instead of looking up this one.
       AND (t.status = 'Queued') IS TRUE -- fence
       AND t.woken_at IS NOT NULL
       AND (a.runtimes IS NULL OR j.runtime = ANY (a.runtimes::text[]))
       -- Of updates that a job takes all together, the newest: the others are closed (`supersede`).
       AND NOT CASE WHEN j.makes_whole AND t.invalidation_id IS NULL THEN EXISTS (
               SELECT FROM tasks later WHERE later.job_id = t.job_id AND later.status = 'Queued' AND later.id > t.id)
           ELSE false END
    RETURNING t.id, t.org_id, t.job_id, t.status, t.attempt, t.lease_token, t.worker_id, t.started_at, t.lease_expires_at,
              t.timeout_seconds, t.input_versions, t.invalidation_id, j.dag_name, j.dag_version_id,
              j.output_datasets, CASE WHEN j.bootstrapped_at IS NULL THEN j.bootstrap END AS bootstrap
), history AS (
    INSERT INTO task_attempts (task_id, attempt, org_id, lease_token, worker_id, started_at)
    SELECT id, attempt, org_id, lease_token, worker_id, started_at FROM claimed
), pinned AS (
    SELECT c.id AS task_id, c.attempt, c.org_id, i.position, i.dataset_uuid, i.where_tree, i.name AS alias, i.triggers, d.name,
           v.id AS version, v.storage_location, v.shares_files, h.last_commit
      FROM claimed c
      JOIN job_inputs i ON i.job_id = c.job_id
      JOIN datasets d ON d.id = i.dataset_uuid
      LEFT JOIN dag_current_versions other
             ON other.org_id = d.org_id AND other.dag_name = d.producer_dag_name AND d.producer_dag_name <> c.dag_name
      LEFT JOIN release_members mine
             ON mine.dag_version_id = c.dag_version_id AND mine.builds AND d.producer_dag_name <> c.dag_name
      LEFT JOIN release_members theirs ON theirs.release_id = mine.release_id AND theirs.dag_name = d.producer_dag_name
      -- Within one DAG a job reads the generations of its own version; across DAGs, those that the other serves now, or
      -- those of the same release while that is built (`version_read`).
      JOIN dag_version_datasets served
             ON served.dag_version_id = coalesce(theirs.dag_version_id, other.dag_version_id, c.dag_version_id)
            AND served.dataset_uuid = i.dataset_uuid
      JOIN dataset_versions v ON v.id = served.dataset_version
      LEFT JOIN dataset_heads h ON h.dataset_uuid = i.dataset_uuid
), recorded AS (
    INSERT INTO task_inputs (task_id, attempt, org_id, input_dataset_uuid, input_dataset_version, input_commit)
    SELECT task_id, attempt, org_id, dataset_uuid, version, last_commit FROM pinned
    ON CONFLICT DO NOTHING
)
SELECT c.id AS task_id, c.org_id, c.job_id, c.status::text, c.attempt, c.lease_token, c.lease_expires_at, c.timeout_seconds,
       c.input_versions::text AS trigger, c.invalidation_id, c.bootstrap::text,
       (SELECT jsonb_agg(input_ref(p.dataset_uuid, p.version, p.last_commit, p.name, p.alias, p.storage_location, p.where_tree,
                                   p.triggers) || jsonb_build_object('shares_files', p.shares_files) ORDER BY p.position)
          FROM pinned p WHERE p.task_id = c.id)::text AS inputs,
       (SELECT s.state FROM operator_state s
         WHERE s.org_id = c.org_id AND s.job_id = c.job_id AND s.state_key = 'default')::text AS state,
       (SELECT jsonb_object_agg(d.id, d.name) FROM datasets d WHERE d.id = ANY (c.output_datasets))::text AS names
  FROM claimed c;

-- name: claim_again
-- Repeated claims whose first answer was lost: what was recorded then, and the lease from now on. It is extended only
-- within the time of one lease after the claim: repeating a claim does not hold a task for ever.
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS a (task_id, worker_id, lease_token)
     ORDER BY task_id -- every batch locks its tasks in this order: no two wait for each other
), claimed AS (
    UPDATE tasks t
       SET last_heartbeat = now(),
           lease_expires_at = greatest(t.lease_expires_at, least(
               now() + make_interval(secs => j.heartbeat_timeout_seconds),
               t.started_at + make_interval(secs => 2 * j.heartbeat_timeout_seconds),
               t.started_at + make_interval(secs => t.timeout_seconds)
           ))
      FROM asked a, jobs j
     WHERE t.id = a.task_id
       AND j.id = t.job_id
       AND t.worker_id = a.worker_id
       AND holds_lease(t, t.attempt, a.lease_token) -- fence
       AND (t.status = 'Running') IS TRUE -- fence
    RETURNING t.id, t.attempt, t.lease_token, t.lease_expires_at
)
SELECT d.task_id, d.org_id, d.job_id, d.status, c.attempt, c.lease_token, c.lease_expires_at, d.timeout_seconds, d.trigger,
       d.invalidation_id, d.bootstrap, d.inputs, d.state, d.names
  FROM claimed c
  JOIN described_tasks d ON d.task_id = c.id;

-- name: supersede
-- Of jobs that make their whole output anew: tasks of theirs (those asked for are among them) that wait although a later
-- one reads all that they would have read. An invalidation is not closed: its own task marks it as processed.
WITH wholes AS (
    SELECT DISTINCT t.job_id
      FROM tasks t JOIN jobs j ON j.id = t.job_id
     WHERE t.id = ANY ($1::uuid[]) AND (t.status = 'Queued') IS TRUE AND j.makes_whole
), newest AS (
    SELECT w.job_id, n.id
      FROM wholes w
      CROSS JOIN LATERAL (
          SELECT t.id FROM tasks t WHERE t.job_id = w.job_id AND t.status = 'Queued'
           UNION ALL
          SELECT t.id FROM tasks t
           WHERE t.job_id = w.job_id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL
           ORDER BY id DESC
           LIMIT 1) n
), behind AS (
    SELECT t.id, n.id AS later, t.history
      FROM newest n JOIN tasks t ON t.job_id = n.job_id AND t.status = 'Queued' AND t.id < n.id
     WHERE t.invalidation_id IS NULL
     ORDER BY t.id
       FOR NO KEY UPDATE OF t SKIP LOCKED
), news AS (
    -- What it does instead of a task about new data is about new data too.
    UPDATE tasks t SET history = false WHERE t.history AND t.id IN (SELECT b.later FROM behind b WHERE NOT b.history)
)
UPDATE tasks t
   SET status = 'Canceled', completed_at = now(), superseded_by = b.later,
       cancel_reason = format('superseded by task %s, which was queued later and makes the whole output anew', b.later)
  FROM behind b
 WHERE t.id = b.id AND (t.status = 'Queued') IS TRUE
RETURNING t.id;

-- name: statuses
-- What has become of tasks that could not be claimed, as far as the caller may claim tasks of their runtime.
SELECT t.id, t.status::text
  FROM unnest($1::uuid[], $2::text[]) AS a (task_id, runtimes)
  JOIN tasks t ON t.id = a.task_id
  JOIN jobs j ON j.id = t.job_id
 WHERE a.runtimes IS NULL OR j.runtime = ANY (a.runtimes::text[]);

-- name: fetch_task
-- A task without claiming it: the same as a claim is answered with, but for the lease.
SELECT task_id, org_id, job_id, status, attempt, NULL::uuid AS lease_token, NULL::timestamptz AS lease_expires_at,
       timeout_seconds, trigger, invalidation_id, bootstrap, inputs, state, names
  FROM described_tasks
 WHERE task_id = $1;

-- name: job_of
-- The job of a task, for log lines about it.
SELECT job_id FROM tasks WHERE id = $1;

-- name: renew_leases
-- Every heartbeat asked for at once. A lost, canceled or overlong attempt is refused and never gets its lease back.
WITH asked AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::jsonb[])
        WITH ORDINALITY AS a (task_id, attempt, lease_token, progress, n)
     ORDER BY task_id -- as for claims
), renewed AS (
    UPDATE tasks t
       SET last_heartbeat = now(),
           progress = coalesce(a.progress, t.progress),
           lease_expires_at = least(
               now() + make_interval(secs => j.heartbeat_timeout_seconds),
               t.started_at + make_interval(secs => t.timeout_seconds)
           )
      FROM asked a, jobs j
     WHERE t.id = a.task_id
       AND j.id = t.job_id
       AND holds_lease(t, a.attempt, a.lease_token) -- fence
       AND (t.status = 'Running') IS TRUE -- fence
       AND (t.timeout_seconds IS NULL OR now() < t.started_at + make_interval(secs => t.timeout_seconds))
    RETURNING t.id, t.job_id, t.lease_expires_at
)
SELECT r.lease_expires_at, t.status::text, t.completed_at AS canceled_at,
       coalesce(holds_lease(t, a.attempt, a.lease_token), false) AS is_current,
       EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = r.job_id) AS paused,
       EXISTS (SELECT FROM sources s WHERE s.task_id = r.id AND s.state = 'Draining') AS draining
  FROM asked a
  LEFT JOIN tasks t ON t.id = a.task_id
  LEFT JOIN renewed r ON r.id = a.task_id
 ORDER BY a.n;

-- name: status_of_attempt
-- The state of a task, if attempt and lease are the current ones.
SELECT t.status::text
  FROM tasks t
 WHERE t.id = $1
   AND holds_lease(t, $2, $3) -- fence
;
