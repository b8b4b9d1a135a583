-- name: enter
-- The always-on sources of a version that was activated are to be started. One that still drains since this version was
-- last active has its row, and is taken back by the loop once it has stopped.
INSERT INTO sources (job_id, org_id)
SELECT j.id, j.org_id FROM jobs j
 WHERE j.org_id = $1 AND j.dag_version_id = $2 AND j.source ->> 'kind' = 'always_on'
ON CONFLICT (job_id) DO NOTHING;

-- name: enter_missing
-- Always-on sources of active versions that have no row, whatever took it: they are to be started.
INSERT INTO sources (job_id, org_id)
SELECT j.id, j.org_id
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.source ->> 'kind' = 'always_on'
 WHERE NOT EXISTS (SELECT FROM sources s WHERE s.job_id = j.id)
ON CONFLICT (job_id) DO NOTHING;

-- name: lock_leaving
-- Sources of versions that left, locked for `leave`. NULL: of all DAGs. In a statement of its own: whoever starts one of
-- them meanwhile is waited for, and the run that it made is seen by the next statement only.
SELECT s.job_id
  FROM sources s
  JOIN jobs j ON j.id = s.job_id
  LEFT JOIN dag_current_versions c ON c.org_id = j.org_id AND c.dag_name = j.dag_name
 WHERE ($1::uuid IS NULL OR j.org_id = $1) AND ($2::text IS NULL OR j.dag_name = $2)
   AND c.dag_version_id IS DISTINCT FROM j.dag_version_id
   AND NOT (s.state = 'Draining' AND s.drain_reason = 'deactivation')
 ORDER BY s.job_id
   FOR UPDATE OF s;

-- name: leave
-- Sources of versions that left ($1, locked by `lock_leaving`): a run that nobody has claimed is canceled, one that was
-- claimed is told to stop, also if that happened just now; a source without a run is gone.
WITH gone AS (
    SELECT s.job_id, s.task_id, coalesce(t.status IN ('Queued', 'Running'), false) AS is_open
      FROM sources s
      LEFT JOIN tasks t ON t.id = s.task_id
     WHERE s.job_id = ANY ($1::uuid[])
), unclaimed AS (
    UPDATE tasks t
       SET status = 'Canceled', completed_at = now(), cancel_reason = 'another version of the DAG was activated'
      FROM gone WHERE t.id = gone.task_id AND gone.is_open AND t.status = 'Queued'
    RETURNING t.id
), told AS (
    UPDATE sources s SET state = 'Draining', state_since = now(), drain_reason = 'deactivation'
      FROM gone
     WHERE s.job_id = gone.job_id AND gone.is_open
       AND NOT EXISTS (SELECT FROM unclaimed u WHERE u.id = gone.task_id)
    RETURNING s.job_id
), ended AS (
    DELETE FROM sources s USING gone
     WHERE s.job_id = gone.job_id AND (NOT gone.is_open OR EXISTS (SELECT FROM unclaimed u WHERE u.id = gone.task_id))
    RETURNING s.job_id
)
SELECT (SELECT count(*) FROM told) + (SELECT count(*) FROM ended);

-- name: start
-- Pending sources whose DAG is active and whom nothing holds: the one long task is made, or its next attempt, and the
-- source runs. The lock on the source's row makes it one, however many replicas look. A source of the same job that
-- still drains comes first: two would write the same dataset.
WITH due AS (
    SELECT s.job_id, s.org_id, s.run_id, s.task_id, j.priority, j.runtime
      FROM sources s
      JOIN jobs j ON j.id = s.job_id
      JOIN dag_current_versions c
        ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id = j.dag_version_id
     WHERE s.state = 'Pending'
       AND NOT EXISTS (SELECT FROM source_drains WHERE until > now())
       AND NOT EXISTS (SELECT FROM pauses p WHERE p.job_id = s.job_id AND p.until IS NULL)
       AND NOT EXISTS (
           SELECT FROM sources o JOIN jobs other ON other.id = o.job_id
            WHERE o.state = 'Draining' AND other.org_id = j.org_id AND other.dag_name = j.dag_name
              AND other.name = j.name)
     ORDER BY s.job_id
     LIMIT $1
       FOR UPDATE OF s SKIP LOCKED
), again AS (
    -- A run that was lost goes on under its own id: the same task, its next attempt.
    UPDATE tasks t
       SET status = 'Queued', attempt = t.attempt + 1, max_attempts = t.attempt + 1, queued_at = now(),
           woken_at = now(), next_retry_at = NULL, error_message = NULL, fault = NULL, lease_token = NULL, worker_id = NULL,
           started_at = NULL, last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,
           completion_answer = NULL
      FROM due
     WHERE t.id = due.task_id AND t.status = 'Failed'
    RETURNING t.id, t.job_id
), made AS (
    -- One attempt: what follows a loss is decided here, not by the retry scheduler. No timeout: it runs until told.
    INSERT INTO tasks (id, org_id, job_id, priority, max_attempts, dedupe_key, woken_at)
    SELECT CASE WHEN n.runs = 0 AND NOT EXISTS (SELECT FROM tasks x WHERE x.id = due.run_id)
                THEN due.run_id ELSE uuidv7() END,
           due.org_id, due.job_id, due.priority, 1,
           'source:' || due.job_id || CASE WHEN n.runs = 0 THEN '' ELSE ':run:' || n.runs END, now()
      FROM due
      LEFT JOIN tasks t ON t.id = due.task_id
      CROSS JOIN LATERAL (SELECT count(*) AS runs FROM tasks r WHERE r.job_id = due.job_id AND r.dedupe_key IS NOT NULL) n
     WHERE t.id IS NULL OR t.status IN ('Completed', 'Canceled')
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, job_id
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT due.org_id, 'enqueue_task', jsonb_build_object('task_id', w.id, 'runtime', due.runtime)
      FROM (SELECT id, job_id FROM again UNION ALL SELECT id, job_id FROM made) w
      JOIN due ON due.job_id = w.job_id
), started AS (
    UPDATE sources s
       SET state = 'Running', state_since = now(), task_id = coalesce(made.id, due.task_id)
      FROM due LEFT JOIN made ON made.job_id = due.job_id
     WHERE s.job_id = due.job_id AND coalesce(made.id, due.task_id) IS NOT NULL
    RETURNING s.job_id
)
SELECT count(*) FROM started;

-- name: restart
-- Dead sources whose wait is over.
WITH dead AS (
-- part: dead_sources
)
UPDATE sources s
   SET state = 'Pending', state_since = now(), restarts = s.restarts + 1
  FROM dead
 WHERE s.job_id = dead.job_id AND s.state = 'Dead' AND dead.due <= now();

-- name: bury
-- Running sources whose task has ended without being told to: lost, failed, canceled or finished. One that had run for
-- longer than the longest wait was well: its restarts are counted anew.
UPDATE sources s
   SET state = 'Dead', state_since = now(), last_heartbeat = coalesce(t.last_heartbeat, s.last_heartbeat),
       restarts = CASE WHEN t.last_heartbeat >= t.started_at + make_interval(secs => j.retry_backoff_max_seconds)
                       THEN 0 ELSE s.restarts END,
       last_error = coalesce(t.error_message, t.cancel_reason, 'it ended by itself')
  FROM tasks t, jobs j
 WHERE t.id = s.task_id AND j.id = s.job_id AND s.state = 'Running'
   AND t.status IN ('Completed', 'Failed', 'Canceled');

-- name: hold
-- Sources that run although their job is paused: told to stop; one that nobody has claimed yet goes back to waiting.
WITH held AS (
    SELECT s.job_id, s.task_id, t.status = 'Queued' AS unclaimed
      FROM sources s JOIN tasks t ON t.id = s.task_id
     WHERE s.state = 'Running' AND t.status IN ('Queued', 'Running')
       AND EXISTS (SELECT FROM pauses p WHERE p.job_id = s.job_id AND p.until IS NULL)
     ORDER BY s.job_id
       FOR UPDATE OF s, t
), freed AS (
    UPDATE tasks t SET status = 'Canceled', completed_at = now(), cancel_reason = 'the source is paused'
      FROM held WHERE t.id = held.task_id AND held.unclaimed AND t.status = 'Queued'
)
UPDATE sources s
   SET state = CASE WHEN held.unclaimed THEN 'Pending' ELSE 'Draining' END::source_state, state_since = now(),
       drain_reason = CASE WHEN NOT held.unclaimed THEN 'pause' END
  FROM held WHERE s.job_id = held.job_id;

-- name: resume
-- A pause that ended before the source had stopped: it goes on.
UPDATE sources s SET state = 'Running', state_since = now(), drain_reason = NULL
 WHERE s.state = 'Draining' AND s.drain_reason = 'pause'
   AND NOT EXISTS (SELECT FROM pauses p WHERE p.job_id = s.job_id AND p.until IS NULL);

-- name: lock_drained
-- The organisations with drained sources. No activation of theirs goes on until the transaction ends: `settle` sees which
-- version is active, in a statement of its own, which begins when the lock is had.
SELECT o.org_id, pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || o.org_id, 0))
  FROM (SELECT DISTINCT s.org_id
          FROM sources s JOIN tasks t ON t.id = s.task_id
         WHERE s.state = 'Draining' AND t.status IN ('Completed', 'Failed', 'Canceled')
         ORDER BY s.org_id) o;

-- name: settle
-- Drained sources of these organisations ($1, locked by `lock_drained`): their task has ended. After a pause or a shutdown
-- they wait to be started; otherwise they are gone, unless their version has come back meanwhile. What one remembered until the end goes to the same job of the active
-- version, if it writes the same generations; that one has been waiting for this end.
WITH drained AS (
    SELECT s.job_id,
           s.drain_reason <> 'deactivation' OR EXISTS (
               SELECT FROM jobs j JOIN dag_current_versions c ON c.dag_version_id = j.dag_version_id
                WHERE j.id = s.job_id) AS stays
      FROM sources s JOIN tasks t ON t.id = s.task_id
     WHERE s.org_id = ANY ($1::uuid[]) AND s.state = 'Draining' AND t.status IN ('Completed', 'Failed', 'Canceled')
       FOR UPDATE OF s SKIP LOCKED
), waiting AS (
    UPDATE sources s SET state = 'Pending', state_since = now(), drain_reason = NULL
      FROM drained d WHERE s.job_id = d.job_id AND d.stays
    RETURNING s.job_id
), gone AS (
    DELETE FROM sources s USING drained d WHERE s.job_id = d.job_id AND NOT d.stays RETURNING s.job_id
), handed_on AS (
    INSERT INTO operator_state (org_id, job_id, state_key, state)
    SELECT st.org_id, heir.id, st.state_key, st.state
      FROM drained d
      JOIN jobs old ON old.id = d.job_id
      JOIN dag_current_versions c ON c.org_id = old.org_id AND c.dag_name = old.dag_name
      JOIN jobs heir
        ON heir.dag_version_id = c.dag_version_id AND heir.name = old.name AND heir.output_datasets = old.output_datasets
      JOIN operator_state st ON st.job_id = old.id
     WHERE NOT d.stays
       AND NOT EXISTS (
           SELECT FROM dag_version_datasets was
             JOIN dag_version_datasets served
               ON served.dag_version_id = heir.dag_version_id AND served.dataset_uuid = was.dataset_uuid
            WHERE was.dag_version_id = old.dag_version_id AND was.dataset_uuid = ANY (old.output_datasets)
              AND was.dataset_version <> served.dataset_version)
    ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now()
)
SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM gone);

-- name: end_drain
-- Sources that were told to stop and go on for too long ($1): canceled, so that they cannot commit.
WITH late AS (
    SELECT t.id, t.attempt
      FROM sources s JOIN tasks t ON t.id = s.task_id
     WHERE s.state = 'Draining' AND s.state_since + $1::interval <= now() AND t.status IN ('Queued', 'Running')
       FOR NO KEY UPDATE OF t SKIP LOCKED
), history AS (
    UPDATE task_attempts h SET ended_at = now(), outcome = 'Canceled', error_message = NULL
      FROM late l
     WHERE h.task_id = l.id AND h.attempt = l.attempt AND h.ended_at IS NULL
)
UPDATE tasks t
   SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, cancel_reason = 'it did not stop when told to'
  FROM late WHERE t.id = late.id AND t.status IN ('Queued', 'Running');

-- name: drain_all
-- The system goes down: every source that runs is told to stop, and none is started for a while ($1). What nobody has
-- claimed yet waits for the next start.
WITH held AS (
    INSERT INTO source_drains (until) VALUES (now() + $1::interval)
    ON CONFLICT (only_one) DO UPDATE SET since = now(), until = excluded.until
), told AS (
    UPDATE sources s SET state = 'Draining', state_since = now(), drain_reason = 'shutdown'
      FROM tasks t
     WHERE t.id = s.task_id AND s.state = 'Running' AND t.status = 'Running'
    RETURNING s.job_id
)
SELECT count(*) FROM told;

-- name: end_hold
-- The system is up: sources may start.
DELETE FROM source_drains;

-- name: pause
-- A person holds a job; once, however often it is said.
WITH held AS (
    INSERT INTO pauses (org_id, job_id, priority, reason, paused_by) VALUES ($1, $2, 'normal', 'manual', $3)
    ON CONFLICT (job_id, priority, reason, cause_job_id) WHERE until IS NULL DO NOTHING
    RETURNING id
)
SELECT count(*) FROM held;

-- name: end_pause
-- And lets it go on.
WITH freed AS (
    UPDATE pauses SET until = now() WHERE org_id = $1 AND job_id = $2 AND reason = 'manual' AND until IS NULL
    RETURNING id
)
SELECT count(*) FROM freed;

-- name: inherit_pauses
-- What a person holds stays held in the next version ($2) of its DAG: the pause goes over to the job of the same name.
UPDATE pauses p SET job_id = j.id
  FROM jobs old, jobs j
 WHERE p.job_id = old.id AND p.reason = 'manual' AND p.until IS NULL AND j.dag_version_id = $2 AND j.org_id = $1
   AND old.org_id = j.org_id AND old.dag_name = j.dag_name AND old.name = j.name AND old.id <> j.id
   AND NOT EXISTS (
       SELECT FROM pauses o WHERE o.job_id = j.id AND o.reason = 'manual' AND o.until IS NULL);

-- name: next_source
-- How long until a dead source may start again, or one that drains is given up ($1).
WITH dead AS (
-- part: dead_sources
)
SELECT extract(epoch FROM min(due) - now())::float8 FROM (
    SELECT due FROM dead
    UNION ALL
    SELECT s.state_since + $1::interval FROM sources s WHERE s.state = 'Draining'
) AS times;

-- name: find_job
-- A job by name: in the active version of its DAG, or, to say what is missing, whether the DAG is there at all.
SELECT c.dag_version_id AS active, j.id AS job_id, j.source ->> 'kind' AS kind
  FROM (SELECT DISTINCT org_id, dag_name FROM dag_versions WHERE org_id = $1 AND dag_name = $2) d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.dag_name
  LEFT JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3;

-- name: lock_request
-- The same request twice at once is done one after the other; and an activation comes before it or after it, so that
-- the generation it tells of is the one that is served.
SELECT pg_advisory_xact_lock(hashtextextended('trace trigger ' || $1::uuid, 0)),
       pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || $2::uuid, 0));

-- name: events_of_request
-- What a request has already made.
SELECT e.id, e.scope, d.producer_dag_name AS dag_name, d.producer_job_name AS job_name
  FROM events e JOIN datasets d ON d.id = e.dataset_uuid
 WHERE e.org_id = $1 AND e.producer_run_id = $2 AND e.origin = 'manual'
 ORDER BY d.producer_output_index;

-- name: store_trigger
-- Events that a person caused, with a promise to route them.
WITH stored AS (
    INSERT INTO events (id, org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value,
                        partition_key, block_range)
    SELECT v.event_id, $1, 'manual', v.kind::event_kind, $2, v.dataset_uuid, v.dataset_version, v.scope, v.cursor_value,
           v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END
      FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::bigint[],
                  $11::bigint[])
        AS v (event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop)
    RETURNING id, org_id
), owed AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id) FROM stored
)
SELECT count(*) FROM stored;

-- name: find_dataset
-- A dataset by published name or id, and the generation that is served.
SELECT d.id, d.name, served.dataset_version
  FROM datasets d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  LEFT JOIN dag_version_datasets served ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = d.id
 WHERE d.org_id = $1 AND (d.name = $2 OR d.id = $3);
