-- name: is_needed
-- Whether a pass has anything to do: a queue that can pause others, a pause that may end, or an event that waits.
SELECT EXISTS (SELECT FROM jobs WHERE max_queue_depth IS NOT NULL OR max_queue_age IS NOT NULL)
    OR EXISTS (SELECT FROM pauses WHERE until IS NULL AND cause_job_id IS NOT NULL)
    OR EXISTS (SELECT FROM held_events);

-- name: try_lock
-- One replica at a time: whether this one has the turn, until its transaction ends.
SELECT pg_try_advisory_xact_lock(hashtextextended('trace flow', 0));

-- name: list_loads
-- Depth and age of the queues of active jobs that have thresholds.
SELECT j.id AS job_id, q.depth, coalesce(extract(epoch FROM now() - q.oldest), 0)::float8 AS oldest_seconds,
       j.max_queue_depth AS max_depth, extract(epoch FROM j.max_queue_age)::float8 AS max_age_seconds,
       j.resume_queue_depth AS resume_depth, extract(epoch FROM j.resume_queue_age)::float8 AS resume_age_seconds
  FROM jobs j
  JOIN dag_current_versions c ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id = j.dag_version_id
  CROSS JOIN LATERAL (
      SELECT count(*) AS depth, min(t.queued_at) AS oldest FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued') q
 WHERE j.max_queue_depth IS NOT NULL OR j.max_queue_age IS NOT NULL;

-- name: list_open_causes
-- The limits that pause jobs now.
SELECT DISTINCT cause_job_id AS queue, reason::text AS threshold, priority::text
  FROM pauses
 WHERE until IS NULL AND cause_job_id IS NOT NULL;

-- name: list_edges
-- From each active job to the active jobs that its datasets trigger, over all DAGs.
SELECT DISTINCT p.id AS producer, i.job_id AS consumer
  FROM dag_current_versions c
  JOIN jobs p ON p.dag_version_id = c.dag_version_id
  CROSS JOIN LATERAL unnest(p.output_datasets) AS o (dataset_uuid)
  JOIN job_inputs i ON i.dataset_uuid = o.dataset_uuid AND i.live AND i.triggers AND i.org_id = p.org_id
 WHERE i.job_id <> p.id;

-- name: set_pauses
-- Makes the pauses by pressure those that are given: opens the new ones, and ends those that are not among them.
WITH wanted AS (
    SELECT w.*, j.org_id
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[], $5::float8[], $6::float8[])
               AS w (job_id, priority, reason, cause_job_id, threshold, observed)
      JOIN jobs j ON j.id = w.job_id
), ended AS (
    UPDATE pauses p SET until = now()
     WHERE p.until IS NULL AND p.cause_job_id IS NOT NULL
       AND NOT EXISTS (SELECT FROM wanted w
                        WHERE w.job_id = p.job_id AND w.priority = p.priority::text AND w.reason = p.reason::text
                          AND w.cause_job_id = p.cause_job_id)
    RETURNING p.id
), opened AS (
    INSERT INTO pauses (org_id, job_id, priority, reason, cause_job_id, threshold, observed)
    SELECT org_id, job_id, priority::work_priority, reason::pause_reason, cause_job_id, threshold::numeric, observed::numeric
      FROM wanted
     ORDER BY job_id, priority, reason, cause_job_id
    ON CONFLICT (job_id, priority, reason, cause_job_id) WHERE until IS NULL DO NOTHING
    RETURNING id
)
SELECT (SELECT count(*) FROM opened) AS opened, (SELECT count(*) FROM ended) AS ended;

-- name: move_held
-- What is held for jobs of versions that are no longer active waits for the job of the same name in the active one, in the
-- same order; where there is none, nothing is left to do. $1 and $2: this organisation and DAG only.
WITH retired AS (
    SELECT h.job_id, h.seq, j.id AS successor, s.id AS successor_source
      FROM (SELECT DISTINCT job_id FROM held_events) held
      JOIN jobs old ON old.id = held.job_id
      LEFT JOIN dag_current_versions c ON c.org_id = old.org_id AND c.dag_name = old.dag_name
      JOIN held_events h ON h.job_id = held.job_id
      LEFT JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = old.name AND j.activation = 'reactive'
      LEFT JOIN jobs waits ON waits.id = h.waits_for
      LEFT JOIN dag_current_versions sc ON sc.org_id = waits.org_id AND sc.dag_name = waits.dag_name
      LEFT JOIN jobs s ON s.dag_version_id = sc.dag_version_id AND s.name = waits.name
     WHERE c.dag_version_id IS DISTINCT FROM old.dag_version_id
       AND ($1::uuid IS NULL OR old.org_id = $1) AND ($2::text IS NULL OR old.dag_name = $2)
), taken AS (
    DELETE FROM held_events h USING retired r
     WHERE h.job_id = r.job_id AND h.seq = r.seq
    RETURNING h.org_id, h.event_id, h.invalidation_id, h.history, h.held_at, h.seq, r.successor, r.successor_source
), moved AS (
    INSERT INTO held_events (org_id, job_id, seq, event_id, invalidation_id, history, held_at, waits_for)
    SELECT org_id, successor, seq, event_id, invalidation_id, history, held_at, coalesce(successor_source, successor)
      FROM taken
     WHERE successor IS NOT NULL
     ORDER BY successor, seq
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM taken;

-- name: release_held
-- Creates the tasks of what is held for jobs that are not paused any more, in order, as long as fewer than $1 tasks of the
-- job are queued. What concerns a generation that is no longer current, or a job that no longer reads it, is dropped.
WITH free_jobs AS (
    SELECT h.job_id, $1 - q.queued AS room
      FROM (SELECT DISTINCT job_id FROM held_events) h
      CROSS JOIN LATERAL (
          SELECT count(*) AS queued
            FROM (SELECT FROM tasks t WHERE t.job_id = h.job_id AND t.status = 'Queued' LIMIT $1) q) q
     WHERE NOT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = h.job_id)
), ready AS (
    SELECT h.*
      FROM free_jobs j
      CROSS JOIN LATERAL (
          SELECT h.job_id, h.seq, h.org_id, h.event_id, h.invalidation_id, h.history
            FROM held_events h
           WHERE h.job_id = j.job_id
             AND NOT (h.history AND EXISTS (
                 SELECT FROM pauses p WHERE p.job_id = h.job_id AND p.until IS NULL AND p.priority = 'bulk'))
             AND (h.waits_for = h.job_id OR NOT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = h.waits_for))
           ORDER BY h.seq
           LIMIT j.room) h
), updates AS (
    SELECT r.job_id, r.seq, r.org_id, r.event_id, r.invalidation_id, r.history, e.dataset_uuid, e.dataset_version, e.cursor_value,
           e.partition_key, e.block_range, e.commit_number,
           event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range,
                          e.commit_number) AS dedupe_key,
           CASE WHEN e.kind <> 'partition' THEN splits_updates(r.job_id, e.dataset_version) ELSE false END AS splits
      FROM ready r
      JOIN events e ON e.id = r.event_id
     UNION ALL
    SELECT r.job_id, r.seq, r.org_id, r.event_id, r.invalidation_id, r.history, v.dataset_uuid, v.dataset_version, NULL,
           v.partition_key, v.block_range, v.follows_commit,
           concat_ws(':', 'partition', v.dataset_uuid, v.dataset_version, v.partition_key, 'invalidation', v.id), false
      FROM ready r
      JOIN data_invalidations v ON v.id = r.invalidation_id
), served AS (
    SELECT u.*, CASE WHEN u.history THEN 'bulk' ELSE j.priority END AS priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime
      FROM updates u
      JOIN datasets d ON d.id = u.dataset_uuid
      JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      JOIN dag_version_datasets s
        ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = u.dataset_uuid AND s.dataset_version = u.dataset_version
      JOIN jobs j ON j.id = u.job_id
     WHERE EXISTS (SELECT FROM job_inputs i
                    WHERE i.job_id = u.job_id AND i.dataset_uuid = u.dataset_uuid AND i.live AND i.triggers)
), compared AS (
    -- As in `route_events`.
    INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
    SELECT DISTINCT job_id, dataset_uuid, org_id FROM served WHERE splits ORDER BY 1, 2
    ON CONFLICT (job_id, dataset_uuid) DO UPDATE
       SET due_at = least(catch_ups.due_at, now()), again = (catch_ups.stage, catch_ups.after_start) <> ('partitions', -2)
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, invalidation_id, history,
                       partitions, input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, invalidation_id, history,
           CASE WHEN partition_key IS NOT NULL THEN ARRAY[partition_key] END,
           trigger_of(dataset_uuid, dataset_version, cursor_value, partition_key, block_range, commit_number),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM served
     WHERE NOT splits
     ORDER BY job_id, seq -- ids rise: a job's tasks keep the order of their events
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM created WHERE invalidation_id IS NOT NULL
    ON CONFLICT DO NOTHING
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
     ORDER BY c.id
), released AS (
    DELETE FROM held_events h USING ready r
     WHERE h.job_id = r.job_id AND h.seq = r.seq
)
SELECT (SELECT count(*) FROM ready) AS released, (SELECT count(*) FROM created) AS tasks;

-- name: list_pauses
-- The paused jobs of an organisation, each with its causes and with how much waits for it; those paused longest first.
SELECT j.dag_name AS dag, j.name AS job, p.reason::text, p.priority::text, q.dag_name AS cause_dag, q.name AS cause_job,
       p.threshold::float8, p.observed::float8, p.since,
       (SELECT count(*) FROM held_events h WHERE h.job_id = j.id OR h.waits_for = j.id) AS held
  FROM pauses p
  JOIN jobs j ON j.id = p.job_id
  JOIN dag_current_versions c ON c.org_id = j.org_id AND c.dag_version_id = j.dag_version_id
  LEFT JOIN jobs q ON q.id = p.cause_job_id
 WHERE p.org_id = $1 AND p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = j.priority)
 ORDER BY p.since, j.dag_name, j.name;

-- name: count_job_states
-- How many reactive jobs of an organisation's active versions have tasks that are queued or run, and how many have none.
SELECT count(*) FILTER (WHERE s.is_running) AS running, count(*) FILTER (WHERE NOT s.is_running) AS idle
  FROM (SELECT EXISTS (SELECT FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued')
            OR EXISTS (SELECT FROM tasks t
                        WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL) AS is_running
          FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
         WHERE c.org_id = $1 AND j.activation = 'reactive') s;

-- name: list_in_flight
-- An organisation's tasks that have not ended, by operator and runtime. One look into the index for each of its jobs.
SELECT j.operator, j.runtime, sum(f.woken)::bigint AS woken, sum(f.running)::bigint AS running,
       sum(w.waiting)::bigint AS waiting, o.max_in_flight AS operator_limit, r.max_in_flight AS runtime_limit
  FROM jobs j
  CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE t.status = 'Queued') AS woken, count(*) FILTER (WHERE t.status = 'Running') AS running
        FROM tasks t WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL) f
  CROSS JOIN LATERAL (
      SELECT count(*) AS waiting FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued' AND t.woken_at IS NULL) w
  LEFT JOIN in_flight_limits o ON o.kind = 'operator' AND o.name = j.operator
  LEFT JOIN in_flight_limits r ON r.kind = 'runtime' AND r.name = j.runtime
 WHERE j.org_id = $1 AND j.source ->> 'kind' IS DISTINCT FROM 'always_on' AND f.woken + f.running + w.waiting > 0
 GROUP BY j.operator, j.runtime, o.max_in_flight, r.max_in_flight
 ORDER BY j.operator, j.runtime;

-- name: worker_load
-- What the tasks of a runtime ($1) need: those that can be claimed (counted up to $2), those that run, sources, and when the
-- next retry is due. `keep_warm_seconds`: the longest idle_timeout of active reactive jobs; NULL: one of them says never.
SELECT (SELECT count(*) FROM (
            SELECT FROM jobs j JOIN tasks t ON t.job_id = j.id
             WHERE j.runtime = $1 AND t.status = 'Queued' AND t.woken_at IS NOT NULL
               AND j.source ->> 'kind' IS DISTINCT FROM 'always_on'
             LIMIT $2) q) AS queued,
       (SELECT count(*) FROM jobs j JOIN tasks t ON t.job_id = j.id
         WHERE j.runtime = $1 AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL AND t.status = 'Running'
           AND j.source ->> 'kind' IS DISTINCT FROM 'always_on') AS leased,
       (SELECT count(*) FROM jobs j JOIN sources s ON s.job_id = j.id
          JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
         WHERE j.runtime = $1 AND NOT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = j.id)) AS sources,
       (SELECT greatest(extract(epoch FROM min(t.next_retry_at) - now()), 0)::float8
          FROM tasks t JOIN jobs j ON j.id = t.job_id
         WHERE j.runtime = $1 AND t.status = 'Failed' AND t.next_retry_at IS NOT NULL
        HAVING count(*) > 0) AS next_retry_seconds,
       (SELECT CASE WHEN bool_and(j.idle_timeout ~ '^[0-9]+s$') IS FALSE THEN NULL
                    ELSE coalesce(max(rtrim(j.idle_timeout, 's')::float8) FILTER (WHERE j.idle_timeout ~ '^[0-9]+s$'), 0) END
          FROM jobs j JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
         WHERE j.runtime = $1 AND j.activation = 'reactive') AS keep_warm_seconds;

-- name: flush
-- A task for each job of operators that collect ($1), to send what it has: everything that it reads is paused, it is not
-- paused itself, and it has something to do it from (a state). One task for a pause, however long that lasts.
WITH stalled AS (
    SELECT j.id, j.org_id, j.priority, j.max_attempts, j.timeout_seconds, j.max_concurrency, j.runtime, p.since
      FROM jobs j
      JOIN dag_current_versions c
        ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id = j.dag_version_id
      CROSS JOIN LATERAL (
          SELECT max(p.since) AS since, count(*) AS inputs, count(p.since) AS paused
            FROM job_inputs i
            JOIN datasets d ON d.id = i.dataset_uuid
            LEFT JOIN dag_current_versions o ON o.org_id = d.org_id AND o.dag_name = d.producer_dag_name
            LEFT JOIN jobs k ON k.dag_version_id = o.dag_version_id AND k.name = d.producer_job_name
            LEFT JOIN LATERAL (SELECT min(q.since) AS since FROM paused_jobs q WHERE q.job_id = k.id) p ON true
           WHERE i.job_id = j.id AND i.triggers) p
     WHERE j.operator = ANY ($1::text[]) AND p.inputs > 0 AND p.inputs = p.paused
       AND NOT EXISTS (SELECT FROM paused_jobs q WHERE q.job_id = j.id)
       AND EXISTS (SELECT FROM operator_state s WHERE s.org_id = j.org_id AND s.job_id = j.id)
       -- What it has been sent already comes first.
       AND NOT EXISTS (SELECT FROM tasks t WHERE t.job_id = j.id AND t.status = 'Queued')
       AND NOT EXISTS (SELECT FROM held_events h WHERE h.job_id = j.id)
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, input_versions, woken_at)
    SELECT org_id, id, priority, max_attempts, timeout_seconds, 'flush:' || extract(epoch FROM since), '{"flush": true}',
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM stalled
     ORDER BY id
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
)
SELECT count(*) FROM created;
