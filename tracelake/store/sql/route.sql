-- name: route_events
-- Routes all due events: creates a task for each job that they trigger, once, and a wake-up for each that may start now.
-- One statement, so taking, acting and marking are one commit. An entry whose event does not exist is given up. $4: this
-- entry only, with a limit of 1. $5: not the oldest, but the first few ($6) of each dataset. Tasks and wake-ups are created
-- as in `complete_tasks`, by the same INSERTs: a function that writes would run in a snapshot of its own, and could not see
-- the rows that this statement is about.
WITH RECURSIVE waiting AS (
    -- One look into the index for each dataset, however many of its events wait.
    (SELECT turn_of FROM outbox WHERE $5 AND status = 'Pending' AND kind = 'route_event' ORDER BY turn_of LIMIT 1)
    UNION ALL
    SELECT (SELECT o.turn_of FROM outbox o
             WHERE o.status = 'Pending' AND o.kind = 'route_event' AND o.turn_of > w.turn_of ORDER BY o.turn_of LIMIT 1)
      FROM waiting w
     WHERE w.turn_of IS NOT NULL
), first_of_each AS (
    SELECT o.id, o.payload
      FROM (SELECT turn_of FROM waiting WHERE turn_of IS NOT NULL LIMIT $1) w
      CROSS JOIN LATERAL (
          SELECT id, payload
            FROM outbox
           WHERE status = 'Pending' AND kind = 'route_event' AND turn_of = w.turn_of AND available_at <= now()
           ORDER BY available_at, id
           LIMIT $6
             FOR UPDATE SKIP LOCKED) o
     LIMIT $1
), oldest AS (
    SELECT id, payload
      FROM outbox
     WHERE NOT $5 AND status = 'Pending' AND kind = 'route_event' AND available_at <= now() AND ($4::bigint IS NULL OR id = $4)
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id, (payload ->> 'event_id')::uuid AS event_id, payload -> 'jobs' AS jobs, payload ? 'lost' AS lost
      FROM (SELECT * FROM oldest UNION ALL SELECT * FROM first_of_each) found
), due_events AS (
    -- The generation may have been replaced since the event was accepted: then it is for the record only. A row for every
    -- entry, so that none of what follows has to join one list with another: that would cost the square of the batch.
    SELECT due.id AS entry, due.jobs, due.lost, e.id, e.org_id, e.created_at, e.dataset_uuid, e.dataset_version, e.kind,
           e.cursor_value, e.partition_key, e.block_range, e.commit_number, e.history,
           served.dataset_version IS NOT NULL AS is_served,
           -- A source that emits events without a task of its own is paused by holding them.
           CASE WHEN e.origin NOT IN ('task', 'sink') THEN (
               SELECT s.id FROM jobs s
                WHERE s.dag_version_id = c.dag_version_id AND s.name = d.producer_job_name) END AS source,
           CASE WHEN e.origin NOT IN ('task', 'sink') THEN EXISTS (
               SELECT FROM jobs s JOIN paused_jobs p ON p.job_id = s.id
                WHERE s.dag_version_id = c.dag_version_id AND s.name = d.producer_job_name)
                ELSE false END AS source_is_paused
      FROM due
      LEFT JOIN events e ON e.id = due.event_id
      LEFT JOIN datasets d ON d.id = e.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = e.dataset_uuid
            AND served.dataset_version = e.dataset_version
), triggered AS (
    SELECT DISTINCT ON (e.id, j.job_id) e.*, j.job_id, j.max_attempts, j.timeout_seconds, j.max_concurrency,
           CASE WHEN e.history THEN 'bulk' ELSE j.priority END AS priority,
           j.holds OR (e.history AND j.holds_history) OR e.source_is_paused AS holds,
           CASE WHEN e.kind <> 'partition' THEN splits_updates(j.job_id, e.dataset_version) ELSE false END AS splits,
           event_task_key(e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range,
                          e.commit_number) AS dedupe_key
      FROM due_events e
      JOIN triggered_jobs j ON j.dataset_uuid = e.dataset_uuid AND j.org_id = e.org_id
     WHERE e.is_served AND (j.takes_history OR NOT e.history)
       AND (e.jobs IS NULL OR e.jobs ? j.job_id::text) -- routed again for jobs that missed it, and for no others
       -- An event whose entry was lost may have been processed: an earlier version of the job caught up with it.
       AND NOT (e.lost AND has_processed(j.job_id, e.dataset_version, e.partition_key, e.cursor_value, e.commit_number,
                                         e.created_at))
), held AS (
    -- A paused job gets no new tasks: `release_held` creates them later, in this order. Every event of a source waits for
    -- it, also one that is held for another reason: if the source is paused again, none overtakes those before it.
    INSERT INTO held_events (org_id, job_id, seq, event_id, history, waits_for)
    SELECT org_id, job_id, entry, id, history, coalesce(source, job_id)
      FROM triggered
     WHERE holds
     ORDER BY job_id, entry
    ON CONFLICT (job_id, event_id) DO NOTHING
), compared AS (
    -- Catching up creates a task for each partition that such a job has not processed. A pass that is under way goes on.
    INSERT INTO catch_ups (job_id, dataset_uuid, org_id)
    SELECT DISTINCT job_id, dataset_uuid, org_id FROM triggered WHERE splits AND NOT holds ORDER BY 1, 2
    ON CONFLICT (job_id, dataset_uuid) DO UPDATE
       SET due_at = least(catch_ups.due_at, now()), again = (catch_ups.stage, catch_ups.after_start) <> ('partitions', -2)
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, event_id, history, partitions,
                       input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, id, history,
           CASE WHEN partition_key IS NOT NULL THEN ARRAY[partition_key] END,
           trigger_of(dataset_uuid, dataset_version, cursor_value, partition_key, block_range, commit_number),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM triggered
     WHERE NOT holds AND NOT splits
     ORDER BY job_id, dedupe_key -- every transaction that creates the same tasks does so in this order: no deadlocks
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, woken_at
), wake_ups AS (
    -- Taken by the replica that writes them, which publishes them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id),
           'Processing', $2, now() + $3::interval, 1
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
    RETURNING id, payload
), marked AS (
    UPDATE events e
       SET routed_at = CASE WHEN d.is_served THEN coalesce(e.routed_at, now()) END,
           disposition = CASE WHEN d.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT d.is_served THEN 'the generation left before the event was routed' END
      FROM due_events d
     WHERE e.id = d.id AND e.disposition = 'Route'
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN d.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN d.id IS NULL THEN 'there is no such event' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM due_events d
     WHERE o.id = d.entry
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM created) AS tasks,
       (SELECT array_agg(id) FROM wake_ups) AS entries, (SELECT array_agg(payload::text) FROM wake_ups) AS payloads
  -- Not waited for on disk: if the server loses it, the entries are pending again; and a claim of these tasks waits for
  -- the disk, for what was written before as well.
  FROM set_config('synchronous_commit', 'off', true);

-- name: route_invalidations
-- As for events: one task for each job over exactly the invalidated partition, and a row that names the task. $4: this entry
-- only.
WITH due AS (
    SELECT id, (payload ->> 'invalidation_id')::uuid AS invalidation_id, payload -> 'jobs' AS jobs,
           coalesce((payload ->> 'history')::boolean, false) AS history
      FROM outbox
     WHERE status = 'Pending' AND kind = 'route_invalidation' AND available_at <= now()
       AND ($4::bigint IS NULL OR id = $4)
     ORDER BY available_at, id
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), due_invalidations AS (
    -- As above: for the record only if the generation has been replaced.
    SELECT due.id AS entry, due.jobs, due.history, v.*, served.dataset_version IS NOT NULL AS is_served
      FROM due
      LEFT JOIN data_invalidations v ON v.id = due.invalidation_id
      LEFT JOIN datasets d ON d.id = v.dataset_uuid
      LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      LEFT JOIN dag_version_datasets served
             ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = v.dataset_uuid
            AND served.dataset_version = v.dataset_version
), triggered AS (
    SELECT DISTINCT ON (v.id, j.job_id) v.id AS invalidation_id, v.org_id, v.dataset_uuid, v.dataset_version,
           v.block_range, v.partition_key AS key, v.follows_commit, v.history, v.entry, j.job_id,
           j.max_attempts, j.timeout_seconds, j.max_concurrency, CASE WHEN v.history THEN 'bulk' ELSE j.priority END AS priority,
           j.holds OR (v.history AND j.holds_history) AS holds
      FROM due_invalidations v
      JOIN triggered_jobs j ON j.dataset_uuid = v.dataset_uuid AND j.org_id = v.org_id
     WHERE v.is_served
       AND (v.jobs IS NULL OR v.jobs ? j.job_id::text) -- as for events
), held AS (
    INSERT INTO held_events (org_id, job_id, seq, invalidation_id, history, waits_for)
    SELECT org_id, job_id, entry, invalidation_id, history, job_id FROM triggered WHERE holds ORDER BY job_id, entry
    ON CONFLICT (job_id, invalidation_id) DO NOTHING
), created AS (
    INSERT INTO tasks (org_id, job_id, priority, max_attempts, timeout_seconds, dedupe_key, invalidation_id, history,
                       partitions, input_versions, woken_at)
    SELECT org_id, job_id, priority, max_attempts, timeout_seconds,
           concat_ws(':', 'partition', dataset_uuid, dataset_version, key, 'invalidation', invalidation_id),
           invalidation_id, history, ARRAY[key],
           trigger_of(dataset_uuid, dataset_version, NULL, key, block_range, follows_commit),
           CASE WHEN max_concurrency IS NULL THEN now() END
      FROM triggered
     WHERE NOT holds
    ON CONFLICT (job_id, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
    RETURNING id, org_id, job_id, priority, invalidation_id, woken_at
), shares AS (
    INSERT INTO data_invalidation_jobs (invalidation_id, job_id, org_id, task_id)
    SELECT invalidation_id, job_id, org_id, id FROM created
    ON CONFLICT DO NOTHING
), wake_ups AS (
    -- Taken by the replica that writes them, which publishes them at once; if it dies, they are taken again.
    INSERT INTO outbox (org_id, kind, payload, status, taken_by, taken_until, attempts)
    SELECT c.org_id, 'enqueue_task', wake_up_of(c.id, j.runtime, c.priority, c.org_id, c.job_id),
           'Processing', $2, now() + $3::interval, 1
      FROM created c JOIN jobs j ON j.id = c.job_id
     WHERE c.woken_at IS NOT NULL
    RETURNING id, payload
), marked AS (
    UPDATE data_invalidations v
       SET routed_at = CASE WHEN d.is_served THEN coalesce(v.routed_at, now()) END,
           disposition = CASE WHEN d.is_served THEN 'Route' ELSE 'AuditOnly' END::disposition,
           audit_reason = CASE WHEN NOT d.is_served THEN 'the generation left before the invalidation was routed' END
      FROM due_invalidations d
     WHERE v.id = d.id AND v.disposition = 'Route' AND (d.is_served OR v.routed_at IS NULL)
), done AS (
    UPDATE outbox o
       SET status = CASE WHEN d.id IS NULL THEN 'Failed' ELSE 'Done' END::outbox_status,
           last_error = CASE WHEN d.id IS NULL THEN 'there is no such invalidation' END,
           attempts = attempts + 1,
           processed_at = now()
      FROM due_invalidations d
     WHERE o.id = d.entry
)
SELECT (SELECT count(*) FROM due) AS events, (SELECT count(*) FROM created) AS tasks,
       (SELECT array_agg(id) FROM wake_ups) AS entries, (SELECT array_agg(payload::text) FROM wake_ups) AS payloads;

-- name: lock_limits
-- The limits that jobs share, locked until the transaction ends, before the jobs: replicas count what is in flight one after
-- the other.
WITH shared AS MATERIALIZED (
    SELECT FROM in_flight_limits ORDER BY kind, name FOR NO KEY UPDATE
), of_orgs AS MATERIALIZED (
    SELECT FROM org_limits WHERE name IN ('tasks', 'sandboxes', 'functions') ORDER BY org_id, name FOR NO KEY UPDATE
)
SELECT (SELECT count(*) FROM shared) + (SELECT count(*) FROM of_orgs);

-- name: lock_slots
-- The jobs with tasks that wait for a slot, locked until the transaction ends: replicas count the slots of a job one after
-- the other. In a statement of its own, because what `wake_waiting` counts must be as it is under the lock, and a statement
-- sees the past from before it waited. One look into the index for each job, however many of its tasks wait.
WITH RECURSIVE waiting AS (
    (SELECT job_id FROM tasks WHERE status = 'Queued' AND woken_at IS NULL ORDER BY job_id LIMIT 1)
    UNION ALL
    SELECT (SELECT t.job_id FROM tasks t
             WHERE t.status = 'Queued' AND t.woken_at IS NULL AND t.job_id > w.job_id ORDER BY t.job_id LIMIT 1)
      FROM waiting w
     WHERE w.job_id IS NOT NULL
)
SELECT j.id FROM jobs j
 WHERE j.id IN (SELECT job_id FROM waiting)
 ORDER BY j.id
   FOR NO KEY UPDATE OF j;

-- name: wake_waiting
-- Tasks that wait for a slot of these jobs ($1, locked by `lock_slots`) get one each, as far as the slots of their job, their
-- operator, their runtime and their organisation go: first as many of bulk as its share of a limit is (a 21st part, at least
-- one, and none of a limit of one), then normal ones, then bulk. The organisation that has the fewest in flight is next, and of
-- its jobs the one that has, with its most urgent task. An organisation that stores as much as it may gets none.
WITH limits AS (
    SELECT l.kind, l.name, l.max_in_flight, l.max_in_flight - f.all_of_them AS free,
           CASE WHEN l.max_in_flight > 1 THEN greatest(l.max_in_flight / 21, 1) - f.bulk ELSE 0 END AS bulk_first
      FROM in_flight_limits l
      CROSS JOIN LATERAL (
          SELECT count(*) AS all_of_them, count(*) FILTER (WHERE t.priority = 'bulk') AS bulk
            FROM jobs j JOIN tasks t ON t.job_id = j.id
           WHERE CASE l.kind WHEN 'operator' THEN j.operator ELSE j.runtime END = l.name AND j.shares_limit
             AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL
             AND j.source ->> 'kind' IS DISTINCT FROM 'always_on') f
), org_free AS (
    SELECT o.org_id, s.name, s.runtimes, s.most - s.used AS free,
           CASE WHEN s.most > 1 THEN greatest(s.most / 21, 1) - s.bulk ELSE 0 END AS bulk_first
      FROM (SELECT DISTINCT org_id FROM jobs WHERE id = ANY ($1::uuid[])) o
      CROSS JOIN LATERAL org_slots(o.org_id, false) s
     UNION ALL
    SELECT s.org_id, 'tasks', NULL, 0, 0 FROM org_storage s WHERE is_storage_full(s.org_id)
), full_jobs AS (
    SELECT j.id, j.runtime, j.operator, o.free AS operator_free, r.free AS runtime_free,
           least(o.bulk_first, r.bulk_first) AS shared_bulk, g.bulk_first AS org_bulk, g.tasks_free, g.sandboxes_free,
           g.functions_free, f.in_flight, least(j.max_concurrency - f.in_flight, o.free, r.free, g.free) AS free
      FROM jobs j
      CROSS JOIN LATERAL (
          SELECT count(*) AS in_flight FROM tasks t
           WHERE t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL) f
      LEFT JOIN limits o ON o.kind = 'operator' AND o.name = j.operator
      LEFT JOIN limits r ON r.kind = 'runtime' AND r.name = j.runtime
      CROSS JOIN LATERAL (
          SELECT min(s.free) AS free, min(s.bulk_first) AS bulk_first, min(s.free) FILTER (WHERE s.name = 'tasks') AS tasks_free,
                 min(s.free) FILTER (WHERE s.name = 'sandboxes') AS sandboxes_free,
                 min(s.free) FILTER (WHERE s.name = 'functions') AS functions_free
            FROM org_free s WHERE s.org_id = j.org_id AND (s.runtimes IS NULL OR j.runtime = ANY (s.runtimes))) g
     WHERE j.id = ANY ($1::uuid[]) AND NOT (j.activation = 'source' AND held_by_pressure(j.id))
), candidates AS (
    SELECT t.*, j.id AS job, j.runtime, j.operator, j.operator_free, j.runtime_free, j.shared_bulk, j.org_bulk, j.tasks_free,
           j.sandboxes_free, j.functions_free,
           j.in_flight + row_number() OVER (PARTITION BY j.id, t.priority ORDER BY t.queued_at, t.id) AS turn_of_job
      FROM full_jobs j
      CROSS JOIN LATERAL (
          (SELECT w.id, w.org_id, w.priority, w.queued_at FROM tasks w
            WHERE w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NULL
            ORDER BY w.priority, w.queued_at, w.id -- ids rise: tasks of one statement keep their order
            LIMIT greatest(coalesce(j.free, 1000000), 0))
          UNION
          (SELECT w.id, w.org_id, w.priority, w.queued_at FROM tasks w
            WHERE w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NULL AND w.priority = 'bulk'
            ORDER BY w.queued_at, w.id
            LIMIT greatest(least(j.shared_bulk, j.org_bulk, j.free), 0))) t
), organisations AS (
    SELECT o.org_id, (SELECT count(*) FROM jobs j JOIN tasks t ON t.job_id = j.id
                       WHERE j.org_id = o.org_id AND j.max_concurrency IS NOT NULL
                         AND t.status IN ('Queued', 'Running') AND t.woken_at IS NOT NULL) AS in_flight
      FROM (SELECT DISTINCT org_id FROM candidates) o
), turns AS (
    SELECT c.*, o.in_flight
           + row_number() OVER (PARTITION BY c.org_id, c.priority ORDER BY c.turn_of_job, c.queued_at, c.id) AS turn
      FROM candidates c JOIN organisations o ON o.org_id = c.org_id
), classes AS (
    SELECT t.*, CASE WHEN t.priority = 'normal' THEN 1
                     WHEN coalesce(t.shared_bulk, t.org_bulk) IS NOT NULL
                      AND coalesce(row_number() OVER (PARTITION BY t.priority, t.operator, t.runtime
                                                      ORDER BY t.turn, t.queued_at, t.id) <= t.shared_bulk, true)
                      AND coalesce(row_number() OVER (PARTITION BY t.priority, t.org_id, t.org_bulk IS NULL
                                                      ORDER BY t.turn, t.queued_at, t.id) <= t.org_bulk, true) THEN 0
                     ELSE 2 END AS class
      FROM turns t
), ranked AS (
    SELECT c.*, row_number() OVER (PARTITION BY c.operator ORDER BY c.class, c.turn, c.queued_at, c.id) AS of_operator,
           row_number() OVER (PARTITION BY c.runtime ORDER BY c.class, c.turn, c.queued_at, c.id) AS of_runtime,
           row_number() OVER (PARTITION BY c.org_id ORDER BY c.class, c.turn, c.queued_at, c.id) AS of_org,
           row_number() OVER (PARTITION BY c.org_id, c.sandboxes_free IS NULL ORDER BY c.class, c.turn, c.queued_at, c.id)
               AS of_sandboxes,
           row_number() OVER (PARTITION BY c.org_id, c.functions_free IS NULL ORDER BY c.class, c.turn, c.queued_at, c.id)
               AS of_functions,
           row_number() OVER (PARTITION BY c.job ORDER BY c.class, c.turn_of_job) AS of_job
      FROM classes c
), turn AS (
    SELECT r.id, r.runtime
      FROM ranked r JOIN full_jobs j ON j.id = r.job
     WHERE r.of_operator <= coalesce(r.operator_free, 1000000) AND r.of_runtime <= coalesce(r.runtime_free, 1000000)
       AND r.of_org <= coalesce(r.tasks_free, 1000000) AND r.of_sandboxes <= coalesce(r.sandboxes_free, 1000000)
       AND r.of_functions <= coalesce(r.functions_free, 1000000)
       AND r.of_job <= coalesce(j.free, 1000000)
), woken AS (
    UPDATE tasks t SET woken_at = now() FROM turn
     WHERE t.id = turn.id AND t.status = 'Queued' AND t.woken_at IS NULL
    RETURNING t.id, t.org_id, t.job_id, t.priority, turn.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id) FROM woken
)
SELECT count(*) FROM woken;

-- name: set_limits
-- The limits of operators and runtimes are these ($1: kinds, $2: names, $3: numbers) and no others.
WITH given AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::int[]) AS g (kind, name, max_in_flight)
), gone AS (
    DELETE FROM in_flight_limits l WHERE NOT EXISTS (SELECT FROM given g WHERE g.kind = l.kind AND g.name = l.name)
)
INSERT INTO in_flight_limits (kind, name, max_in_flight) SELECT kind, name, max_in_flight FROM given ORDER BY kind, name
ON CONFLICT (kind, name) DO UPDATE SET max_in_flight = excluded.max_in_flight
 WHERE in_flight_limits.max_in_flight <> excluded.max_in_flight;
