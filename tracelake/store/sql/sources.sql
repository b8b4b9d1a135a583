-- name: insert_sources
-- Inserts the always-on sources of a version that is activated. One that still drains since this version was last
-- active has its row, and is settled by the loop once it has stopped.
INSERT INTO sources (job_id, org_id)
SELECT j.id, j.org_id FROM jobs j
 WHERE j.org_id = $1 AND j.dag_version_id = $2 AND j.source ->> 'kind' = 'always_on'
ON CONFLICT (job_id) DO NOTHING;

-- name: insert_missing
-- Inserts always-on sources that are to run and have no row, for whatever reason.
INSERT INTO sources (job_id, org_id)
SELECT w.job_id, w.org_id
  FROM wanted_sources w
 WHERE NOT EXISTS (SELECT FROM sources s WHERE s.job_id = w.job_id)
ON CONFLICT (job_id) DO NOTHING;

-- name: insert_built
-- Inserts the always-on sources that a release ($1) runs beside those of the active versions. One that writes a generation
-- that was there before continues with the state of the job that wrote it last.
WITH built AS (
    SELECT j.id, j.org_id, j.lineage_id
      FROM release_members m
      JOIN jobs j ON j.dag_version_id = m.dag_version_id
      JOIN wanted_sources w ON w.job_id = j.id
     WHERE m.release_id = $1
), states AS (
    INSERT INTO operator_state (org_id, job_id, state_key, state)
    SELECT DISTINCT ON (b.id, s.state_key) b.org_id, b.id, s.state_key, s.state
      FROM built b
      JOIN jobs same ON same.lineage_id = b.lineage_id
      JOIN operator_state s ON s.job_id = same.id
     ORDER BY b.id, s.state_key, s.updated_at DESC, same.id = b.id DESC
    ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now()
)
INSERT INTO sources (job_id, org_id)
SELECT id, org_id FROM built
ON CONFLICT (job_id) DO NOTHING;

-- name: lock_retired
-- Locks sources of versions that are neither active nor built, for `retire_sources`. NULL: of all DAGs. A statement of its
-- own, because it may wait for a replica that starts a source, whose run only the next statement sees.
SELECT s.job_id
  FROM sources s
  JOIN jobs j ON j.id = s.job_id
 WHERE ($1::uuid IS NULL OR j.org_id = $1) AND ($2::text IS NULL OR j.dag_name = $2)
   AND NOT EXISTS (SELECT FROM wanted_sources w WHERE w.job_id = s.job_id)
   AND NOT (s.state = 'Draining' AND s.drain_reason = 'deactivation')
 ORDER BY s.job_id
   FOR UPDATE OF s;

-- name: retire_sources
-- Retires sources ($1, locked by `lock_retired`): cancels runs that were not claimed, drains those that were, and deletes
-- sources without a run.
WITH retired AS (
    SELECT s.job_id, s.task_id, coalesce(t.status IN ('Queued', 'Running'), false) AS is_open
      FROM sources s
      LEFT JOIN tasks t ON t.id = s.task_id
     WHERE s.job_id = ANY ($1::uuid[])
), unclaimed AS (
    UPDATE tasks t
       SET status = 'Canceled', completed_at = now(), cancel_reason = 'another version of the DAG was activated'
      FROM retired WHERE t.id = retired.task_id AND retired.is_open AND t.status = 'Queued'
    RETURNING t.id
), drained AS (
    UPDATE sources s SET state = 'Draining', state_since = now(), drain_reason = 'deactivation'
      FROM retired
     WHERE s.job_id = retired.job_id AND retired.is_open
       AND NOT EXISTS (SELECT FROM unclaimed u WHERE u.id = retired.task_id)
    RETURNING s.job_id
), deleted AS (
    DELETE FROM sources s USING retired
     WHERE s.job_id = retired.job_id
       AND (NOT retired.is_open OR EXISTS (SELECT FROM unclaimed u WHERE u.id = retired.task_id))
    RETURNING s.job_id
)
SELECT (SELECT count(*) FROM drained) + (SELECT count(*) FROM deleted);

-- name: start_sources
-- Starts pending sources that are to run and are not paused or held: inserts the long task, or queues its next attempt.
-- The lock on the source's row makes sure that one replica starts it. A source of the same job that still drains is
-- waited for: two would write the same dataset.
WITH due AS (
    SELECT s.job_id, s.org_id, s.run_id, s.task_id, j.priority, j.runtime
      FROM sources s
      JOIN jobs j ON j.id = s.job_id
      JOIN wanted_sources w ON w.job_id = s.job_id
     WHERE s.state = 'Pending'
       AND NOT EXISTS (SELECT FROM source_drains WHERE until > now())
       AND NOT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = s.job_id)
       AND NOT EXISTS (
           SELECT FROM sources o JOIN jobs other ON other.id = o.job_id
            WHERE o.state = 'Draining' AND other.org_id = j.org_id AND other.dag_name = j.dag_name
              AND other.name = j.name)
     ORDER BY s.job_id
     LIMIT $1
       FOR UPDATE OF s SKIP LOCKED
), again AS (
    -- A run that was lost continues as the next attempt of the same task.
    UPDATE tasks t
       SET status = 'Queued', attempt = next_attempt(t.attempt), max_attempts = next_attempt(t.attempt), queued_at = now(),
           woken_at = now(), next_retry_at = NULL, error_message = NULL, fault = NULL, lease_token = NULL, worker_id = NULL,
           started_at = NULL, last_heartbeat = NULL, progress = NULL, completed_at = NULL, completion_hash = NULL,
           completion_answer = NULL
      FROM due
     WHERE t.id = due.task_id AND t.status = 'Failed'
    RETURNING t.id, t.job_id
), created AS (
    -- One attempt: this loop restarts it, not the retry scheduler. No timeout: it runs until it is stopped.
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
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT due.org_id, 'enqueue_task', wake_up_of(w.id, due.runtime, due.priority, due.org_id, due.job_id)
      FROM (SELECT id, job_id FROM again UNION ALL SELECT id, job_id FROM created) w
      JOIN due ON due.job_id = w.job_id
), started AS (
    UPDATE sources s
       SET state = 'Running', state_since = now(), task_id = coalesce(created.id, due.task_id)
      FROM due LEFT JOIN created ON created.job_id = due.job_id
     WHERE s.job_id = due.job_id AND coalesce(created.id, due.task_id) IS NOT NULL
    RETURNING s.job_id
)
SELECT count(*) FROM started;

-- name: restart_dead
-- Makes dead sources pending whose backoff is over.
UPDATE sources s
   SET state = 'Pending', state_since = now(), restarts = s.restarts + 1
  FROM dead_sources dead
 WHERE s.job_id = dead.job_id AND s.state = 'Dead' AND dead.due <= now();

-- name: mark_dead
-- Marks running sources as dead whose task has ended by itself: lost, failed, canceled or finished. After a run that
-- lasted longer than the longest backoff, restarts are counted from 0 again.
UPDATE sources s
   SET state = 'Dead', state_since = now(), last_heartbeat = coalesce(t.last_heartbeat, s.last_heartbeat),
       restarts = CASE WHEN t.last_heartbeat >= t.started_at + make_interval(secs => j.retry_backoff_max_seconds)
                       THEN 0 ELSE s.restarts END,
       last_error = coalesce(t.error_message, t.cancel_reason, 'it ended by itself')
  FROM tasks t, jobs j
 WHERE t.id = s.task_id AND j.id = s.job_id AND s.state = 'Running'
   AND t.status IN ('Completed', 'Failed', 'Canceled');

-- name: drain_paused
-- Drains running sources whose job is paused; one whose run was not claimed becomes pending.
WITH paused AS (
    SELECT s.job_id, s.task_id, t.status = 'Queued' AS unclaimed
      FROM sources s JOIN tasks t ON t.id = s.task_id
     WHERE s.state = 'Running' AND t.status IN ('Queued', 'Running')
       AND EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = s.job_id)
     ORDER BY s.job_id
       FOR UPDATE OF s, t
), canceled AS (
    UPDATE tasks t SET status = 'Canceled', completed_at = now(), cancel_reason = 'the source is paused'
      FROM paused WHERE t.id = paused.task_id AND paused.unclaimed AND t.status = 'Queued'
)
UPDATE sources s
   SET state = CASE WHEN paused.unclaimed THEN 'Pending' ELSE 'Draining' END::source_state, state_since = now(),
       drain_reason = CASE WHEN NOT paused.unclaimed THEN 'pause' END
  FROM paused WHERE s.job_id = paused.job_id;

-- name: resume_unpaused
-- Sources whose pause ended before they had stopped keep running.
UPDATE sources s SET state = 'Running', state_since = now(), drain_reason = NULL
 WHERE s.state = 'Draining' AND s.drain_reason = 'pause'
   AND NOT EXISTS (SELECT FROM paused_jobs p WHERE p.job_id = s.job_id);

-- name: lock_drained
-- The organisations with drained sources, locked against activations until the transaction ends. A statement of its own,
-- so that `settle_drained` sees which version is active once the lock is held.
SELECT o.org_id, pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || o.org_id, 0))
  FROM (SELECT DISTINCT s.org_id
          FROM sources s JOIN tasks t ON t.id = s.task_id
         WHERE s.state = 'Draining' AND t.status IN ('Completed', 'Failed', 'Canceled')
         ORDER BY s.org_id) o;

-- name: settle_drained
-- Settles sources of these organisations ($1, locked by `lock_drained`) whose task has ended. After a pause or a shutdown
-- they are pending; otherwise they are deleted, unless they are to run again. The state of a deleted source is
-- copied to the same job of the version that is active or built, which has waited for it, if that writes the same
-- generations.
WITH drained AS (
    SELECT s.job_id,
           s.drain_reason <> 'deactivation' OR EXISTS (
               SELECT FROM wanted_sources w WHERE w.job_id = s.job_id) AS stays
      FROM sources s JOIN tasks t ON t.id = s.task_id
     WHERE s.org_id = ANY ($1::uuid[]) AND s.state = 'Draining' AND t.status IN ('Completed', 'Failed', 'Canceled')
       FOR UPDATE OF s SKIP LOCKED
), waiting AS (
    UPDATE sources s SET state = 'Pending', state_since = now(), drain_reason = NULL
      FROM drained d WHERE s.job_id = d.job_id AND d.stays
    RETURNING s.job_id
), deleted AS (
    DELETE FROM sources s USING drained d WHERE s.job_id = d.job_id AND NOT d.stays RETURNING s.job_id
), copied AS (
    INSERT INTO operator_state (org_id, job_id, state_key, state)
    SELECT st.org_id, successor.id, st.state_key, st.state
      FROM drained d
      JOIN jobs old ON old.id = d.job_id
      JOIN jobs successor ON successor.lineage_id = old.lineage_id AND successor.id <> old.id
      JOIN wanted_sources w ON w.job_id = successor.id
      JOIN operator_state st ON st.job_id = old.id
     WHERE NOT d.stays
    ON CONFLICT (org_id, job_id, state_key) DO UPDATE SET state = excluded.state, updated_at = now()
)
SELECT (SELECT count(*) FROM waiting) + (SELECT count(*) FROM deleted);

-- name: cancel_late_drains
-- Cancels the tasks of sources that drain for longer than $1, so that they cannot commit.
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
   SET status = 'Canceled', completed_at = now(), lease_expires_at = NULL, cancel_reason = 'it did not stop in time'
  FROM late WHERE t.id = late.id AND t.status IN ('Queued', 'Running');

-- name: drain_all
-- Drains every running source, and keeps sources from starting for a while ($1). Runs that were not claimed wait for
-- the next start of the system.
WITH hold AS (
    INSERT INTO source_drains (until) VALUES (now() + $1::interval)
    ON CONFLICT (only_one) DO UPDATE SET since = now(), until = excluded.until
), drained AS (
    UPDATE sources s SET state = 'Draining', state_since = now(), drain_reason = 'shutdown'
      FROM tasks t
     WHERE t.id = s.task_id AND s.state = 'Running' AND t.status = 'Running'
    RETURNING s.job_id
)
SELECT count(*) FROM drained;

-- name: end_hold
-- Lets sources start: the system is up.
DELETE FROM source_drains;

-- name: insert_pause
-- Pauses a job, once however often it is called.
WITH inserted AS (
    INSERT INTO pauses (org_id, job_id, priority, reason, paused_by) VALUES ($1, $2, 'normal', 'manual', $3)
    ON CONFLICT (job_id, priority, reason, cause_job_id) WHERE until IS NULL DO NOTHING
    RETURNING id
)
SELECT count(*) FROM inserted;

-- name: end_pause
-- Ends the pause of a job.
WITH ended AS (
    UPDATE pauses SET until = now()
     WHERE org_id = $1 AND job_id = $2 AND reason IN ('manual', 'failure') AND until IS NULL
    RETURNING id
)
SELECT count(*) FROM ended;

-- name: copy_pauses
-- Moves pauses by a user or after a failure to the jobs of the same name in the next version ($2) of the DAG.
UPDATE pauses p SET job_id = j.id
  FROM jobs old, jobs j
 WHERE p.job_id = old.id AND p.reason IN ('manual', 'failure') AND p.until IS NULL AND j.dag_version_id = $2 AND j.org_id = $1
   AND old.org_id = j.org_id AND old.dag_name = j.dag_name AND old.name = j.name AND old.id <> j.id
   AND NOT EXISTS (
       SELECT FROM pauses o WHERE o.job_id = j.id AND o.reason = p.reason AND o.until IS NULL);

-- name: next_due
-- Seconds until a dead source may start again, or a drain is over its limit ($1).
SELECT extract(epoch FROM min(due) - now())::float8 FROM (
    SELECT due FROM dead_sources
    UNION ALL
    SELECT s.state_since + $1::interval FROM sources s WHERE s.state = 'Draining'
) AS times;

-- name: find_job
-- A job by name in the active version of its DAG; a row without a job says that the DAG exists.
SELECT c.dag_version_id AS active, j.id AS job_id, j.source ->> 'kind' AS kind, j.operator,
       EXISTS (SELECT FROM pauses p
                WHERE p.job_id = j.id AND p.reason IN ('manual', 'failure') AND p.until IS NULL) AS paused
  FROM (SELECT DISTINCT org_id, dag_name FROM known_versions WHERE org_id = $1 AND dag_name = $2) d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.dag_name
  LEFT JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3;

-- name: lock_request
-- Serializes concurrent copies of a request, and the request with activations, so that its events are of the current
-- generation.
SELECT pg_advisory_xact_lock(hashtextextended('trace trigger ' || $1::uuid, 0)),
       pg_advisory_xact_lock_shared(hashtextextended('trace activate ' || $2::uuid, 0));

-- name: events_of_request
-- The events that a request has created already.
SELECT e.id, e.scope, d.producer_dag_name AS dag_name, d.producer_job_name AS job_name
  FROM events e JOIN datasets d ON d.id = e.dataset_uuid
 WHERE e.org_id = $1 AND e.producer_run_id = $2 AND e.origin = 'manual'
 ORDER BY d.producer_output_index;

-- name: store_trigger
-- Inserts events of a manual trigger, with an outbox entry to route each.
WITH stored AS (
    INSERT INTO events (id, org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value,
                        partition_key, block_range)
    SELECT v.event_id, $1, 'manual', v.kind::event_kind, $2, v.dataset_uuid, v.dataset_version, v.scope, v.cursor_value,
           v.partition_key, CASE WHEN v.range_start IS NOT NULL THEN int8range(v.range_start, v.range_stop) END
      FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::bigint[],
                  $11::bigint[])
        AS v (event_id, dataset_uuid, dataset_version, scope, kind, cursor_value, partition_key, range_start, range_stop)
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM stored
)
SELECT count(*) FROM stored;

-- name: find_dataset
-- A dataset by published name or id, and its current generation.
SELECT d.id, served.dataset_version
  FROM datasets d
  LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
  LEFT JOIN dag_version_datasets served ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = d.id
 WHERE d.org_id = $1 AND (d.name = $2 OR d.id = $3);

-- name: find_fire
-- The task that a request has made already, in whichever version of the DAG.
SELECT t.id, t.input_versions -> 'scope' AS scope
  FROM jobs j JOIN tasks t ON t.job_id = j.id AND t.dedupe_key = 'fire:' || $2::uuid
 WHERE j.org_id = $1 AND j.dag_name = $3 AND j.name = $4
 ORDER BY t.id
 LIMIT 1;

-- name: store_fire
-- Makes a task of a source ($2) that a user fires, for a part of it ($4), with what the user gave ($5).
WITH created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, partitions, input_versions,
                       woken_at)
    SELECT j.org_id, j.id, j.priority, j.max_attempts, j.timeout_seconds, 'fire:' || $3::uuid,
           CASE WHEN $4::jsonb ? 'partition_key' THEN ARRAY[$4::jsonb ->> 'partition_key'] END,
           fire_of('manual', NULL, NULL, $5::jsonb, $4::jsonb),
           CASE WHEN j.max_concurrency IS NULL AND NOT held_by_pressure(j.id) THEN now() END
      FROM jobs j WHERE j.id = $2 AND j.org_id = $1
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id)
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
)
SELECT id FROM created;

-- name: list_sources
-- The sources of active versions ($2, $3: of one DAG, and one job of it), with what is known about each.
SELECT j.dag_name AS dag, j.name AS job, j.operator, j.runtime, j.source, s.state::text AS state,
       (SELECT p.reason::text FROM paused_jobs p WHERE p.job_id = j.id ORDER BY p.since LIMIT 1) AS pause,
       (SELECT min(p.since) FROM paused_jobs p WHERE p.job_id = j.id) AS paused_since,
       last.slot AS last_slot, last.reason::text AS last_reason,
       (SELECT count(*) FROM source_deliveries d
         WHERE d.org_id = j.org_id AND d.dag_name = j.dag_name AND d.job_name = j.name AND d.held) AS held,
       (SELECT count(*) FROM tasks t WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running')) AS open_tasks,
       o.slug AS org, now() AS now
  FROM dag_current_versions c
  JOIN orgs o ON o.id = c.org_id
  JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.source IS NOT NULL
  LEFT JOIN sources s ON s.job_id = j.id
  LEFT JOIN LATERAL (SELECT x.slot, x.reason FROM source_slots x
                      WHERE x.org_id = j.org_id AND x.dag_name = j.dag_name AND x.job_name = j.name
                      ORDER BY x.slot DESC LIMIT 1) last ON true
 WHERE c.org_id = $1 AND ($2::text IS NULL OR c.dag_name = $2) AND ($3::text IS NULL OR j.name = $3)
 ORDER BY j.dag_name, j.name;

-- name: list_slots
-- The last slots of a source, the newest first, and what became of their tasks.
SELECT x.slot, x.reason::text, x.decided_at, x.task_id, t.status::text AS task_status
  FROM source_slots x LEFT JOIN tasks t ON t.id = x.task_id
 WHERE x.org_id = $1 AND x.dag_name = $2 AND x.job_name = $3
 ORDER BY x.slot DESC
 LIMIT $4;

-- name: list_deliveries
-- Deliveries to a source, the newest first: a page begins below the last number of the page before.
SELECT d.id, d.number, d.delivery_key AS key, d.received_at, d.size_bytes, d.held, d.body IS NULL AS pruned, d.task_id,
       t.status::text AS task_status
  FROM source_deliveries d LEFT JOIN tasks t ON t.id = d.task_id
 WHERE d.org_id = $1 AND d.dag_name = $2 AND d.job_name = $3 AND ($4::bigint IS NULL OR d.number < $4)
 ORDER BY d.number DESC
 LIMIT $5;

-- name: find_delivery
-- The body of a delivery that is to fire once more; no row: there is none, or its body was pruned.
SELECT d.body, d.size_bytes FROM source_deliveries d
 WHERE d.id = $1 AND d.org_id = $2 AND d.dag_name = $3 AND d.job_name = $4 AND d.body IS NOT NULL;

-- name: find_hook
-- The webhook source of the active version, as a delivery to it needs it.
SELECT j.org_id, j.dag_name, j.name AS job_name, j.operator, j.source
  FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE c.org_id = $1 AND c.dag_name = $2 AND j.name = $3 AND j.source ->> 'kind' = 'webhook';

-- name: emit_fire
-- Events of a source ($2) that a user fires ($3: the request), each once, with a cursor that is the time in seconds.
WITH fired AS (
    SELECT j.*, extract(epoch FROM now())::bigint AS cursor FROM jobs j WHERE j.id = $2 AND j.org_id = $1
), emitted AS (
    INSERT INTO events (org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, cursor_value, payload)
    SELECT f.org_id, 'manual', 'cursor', $3, o.id, served.dataset_version, 'cursor:' || f.cursor, f.cursor, $4::jsonb
      FROM fired f
      CROSS JOIN LATERAL unnest(f.output_datasets) AS o (id)
      JOIN dag_version_datasets served ON served.dag_version_id = f.dag_version_id AND served.dataset_uuid = o.id
    RETURNING id, org_id, dataset_uuid
), routes AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM emitted
)
SELECT id FROM emitted;

-- name: events_of_fire
-- The events that a request to fire a source, or a delivery to it, has created already.
SELECT e.id FROM events e
 WHERE e.org_id = $1 AND e.producer_run_id = $2 AND e.origin IN ('manual', 'webhook') ORDER BY e.id;
