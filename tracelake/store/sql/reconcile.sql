-- name: is_due
-- Whether a pass is due: no replica has made one within the interval.
SELECT NOT EXISTS (SELECT FROM reconcile_marks WHERE looked_at > now() - $1::interval);

-- name: ensure_mark
-- Inserts the mark, unless it exists: the first pass begins now, and the sweep reaches the past.
INSERT INTO reconcile_marks DEFAULT VALUES ON CONFLICT DO NOTHING;

-- name: lock_mark
-- Locks the mark, if a pass is due and no other replica holds it: the two periods to compare now. $1: interval, $2: slice,
-- $3: grace, $4: margin for transactions that began long before they committed.
SELECT m.seen_until - $4::interval AS fresh_from,
       least(now() - $3::interval, m.seen_until + $2::interval) AS fresh_to,
       m.swept_until AS swept_from,
       least(m.swept_until + $2::interval, now() - $3::interval) AS swept_to
  FROM reconcile_marks m
 WHERE m.looked_at <= now() - $1::interval
   FOR UPDATE SKIP LOCKED;

-- name: move_mark
-- Records how far was compared. At its end, the sweep starts again at the first deploy.
UPDATE reconcile_marks m
   SET seen_until = greatest(m.seen_until, $1),
       swept_until = CASE WHEN $2 >= m.seen_until THEN coalesce((SELECT min(created_at) FROM dag_versions), now())
                          ELSE $2 END,
       looked_at = now();

-- name: route_lost_events
-- Writes outbox entries for events created from $1 to $2 that were never routed, and for those of the current generation
-- for which a reader that was active then has no task: routed again, to those readers only. Events with an entry, held
-- back or given up are left out. A task's key is the one that `route_events` gives it, so existing tasks are found.
WITH outstanding AS MATERIALIZED (
    SELECT payload ->> 'event_id' AS event_id FROM outbox WHERE status = 'Pending' AND kind = 'route_event'
    UNION ALL SELECT payload ->> 'event_id' FROM outbox WHERE status = 'Processing' AND kind = 'route_event'
    UNION ALL SELECT payload ->> 'event_id' FROM outbox WHERE status = 'Failed' AND kind = 'route_event'
), recent AS MATERIALIZED (
    SELECT e.* FROM events e
     WHERE e.created_at >= $1 AND e.created_at < $2 AND e.disposition = 'Route'
), lacking AS (
    SELECT e.id, e.org_id, jsonb_agg(DISTINCT j.id) AS jobs
      FROM recent e
      JOIN datasets d ON d.id = e.dataset_uuid
      JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
      JOIN dag_version_datasets served
        ON served.dag_version_id = c.dag_version_id AND served.dataset_uuid = e.dataset_uuid
       AND served.dataset_version = e.dataset_version
      JOIN job_inputs i ON i.dataset_uuid = e.dataset_uuid AND i.live AND i.triggers
      JOIN jobs j ON j.id = i.job_id AND j.org_id = e.org_id AND j.activation = 'reactive'
                 AND (j.takes_history OR NOT e.history)
      JOIN dag_current_versions reads ON reads.org_id = j.org_id AND reads.dag_name = j.dag_name
     -- An event that was routed before the reader's version became active was not for it.
     WHERE e.routed_at >= reads.updated_at
       -- Catching up compares these partition by partition.
       AND NOT CASE WHEN e.kind <> 'partition' THEN splits_updates(j.id, e.dataset_version) ELSE false END
       AND NOT EXISTS (
           SELECT FROM tasks t
            WHERE t.job_id = j.id
              AND t.dedupe_key = event_task_key(
                  e.kind, e.dataset_uuid, e.dataset_version, e.cursor_value, e.partition_key, e.block_range, e.commit_number))
       AND NOT EXISTS (SELECT FROM held_events h WHERE h.job_id = j.id AND h.event_id = e.id)
       AND NOT has_processed(j.id, e.dataset_version, e.partition_key, e.cursor_value, e.commit_number, e.created_at)
     GROUP BY e.id, e.org_id
), lost AS (
    SELECT id, org_id, jobs, NULL AS lost FROM lacking
    UNION ALL
    SELECT e.id, e.org_id, NULL, true FROM recent e
     WHERE e.routed_at IS NULL AND NOT EXISTS (SELECT FROM held_events h WHERE h.event_id = e.id)
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, dedupe_key)
    SELECT org_id, 'route_event', jsonb_strip_nulls(jsonb_build_object('event_id', id, 'jobs', jobs, 'lost', lost)),
           'again:event:' || id
      FROM lost
     WHERE NOT EXISTS (SELECT FROM outstanding o WHERE o.event_id = lost.id::text)
    ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND status IN ('Pending', 'Processing') DO NOTHING
    RETURNING id
)
SELECT count(*) FROM entries;

-- name: list_commits_without_events
-- Commits created from $1 to $2 without an event, of datasets that had a reader then. An event of the same task about the
-- same generation that names no commit may be the event of this one.
SELECT c.dataset_uuid, c.number, c.org_id, c.dataset_version, c.task_id, c.attempt
  FROM commits c
  JOIN datasets d ON d.id = c.dataset_uuid
  JOIN dag_current_versions v ON v.org_id = d.org_id AND v.dag_name = d.producer_dag_name
  JOIN dag_version_datasets served
    ON served.dag_version_id = v.dag_version_id AND served.dataset_uuid = c.dataset_uuid
   AND served.dataset_version = c.dataset_version
 WHERE c.created_at >= $1 AND c.created_at < $2
   AND EXISTS (
       SELECT FROM job_inputs i
         JOIN jobs j ON j.id = i.job_id AND j.activation = 'reactive'
         JOIN dag_current_versions reads ON reads.org_id = j.org_id AND reads.dag_name = j.dag_name
        WHERE i.dataset_uuid = c.dataset_uuid AND i.live AND i.triggers AND reads.updated_at <= c.created_at)
   AND NOT EXISTS (
       SELECT FROM events e
        WHERE e.producer_run_id = c.task_id AND e.dataset_uuid = c.dataset_uuid
          AND e.dataset_version = c.dataset_version AND coalesce(e.commit_number, c.number) = c.number);

-- name: list_partitions
-- The partitions that these commits ($1: datasets, $2: numbers) changed and whose content is still current.
SELECT p.dataset_uuid, c.number, p.partition_key, lower(p.block_range) AS start, upper(p.block_range) AS stop
  FROM unnest($1::uuid[], $2::bigint[]) AS c (dataset_uuid, number)
  JOIN partition_versions p
    ON p.dataset_uuid = c.dataset_uuid
   AND ((p.valid_from = c.number AND p.content_since IS NULL) OR p.content_since = c.number)
 WHERE p.valid_to IS NULL;

-- name: insert_events
-- Inserts the events that those tasks should have sent, under the ids they would have had, with an outbox entry each.
WITH missing AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::bigint[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[],
                         $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[])
        AS v (org_id, task_id, attempt, commit_number, event_id, dataset_uuid, dataset_version, scope, kind, cursor_value,
              partition_key, range_start, range_stop)
), stored AS (
    INSERT INTO events (id, org_id, origin, kind, producer_attempt, producer_run_id, producer_task_id, dataset_uuid,
                        dataset_version, scope, cursor_value, partition_key, block_range, commit_number, history)
    SELECT m.event_id, m.org_id, 'task', m.kind::event_kind, m.attempt, m.task_id, m.task_id, m.dataset_uuid,
           m.dataset_version, m.scope, m.cursor_value, m.partition_key,
           CASE WHEN m.range_start IS NOT NULL THEN int8range(m.range_start, m.range_stop) END, m.commit_number, t.history
      FROM missing m JOIN tasks t ON t.id = m.task_id
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM stored
)
SELECT count(*) FROM stored;

-- name: route_lost_invalidations
-- Writes outbox entries for invalidations of current generations created from $1 to $2 that were never routed, or for
-- which a reader that was active then has no task.
WITH outstanding AS MATERIALIZED (
    SELECT payload ->> 'invalidation_id' AS invalidation_id FROM outbox
     WHERE status = 'Pending' AND kind = 'route_invalidation'
    UNION ALL SELECT payload ->> 'invalidation_id' FROM outbox WHERE status = 'Processing' AND kind = 'route_invalidation'
    UNION ALL SELECT payload ->> 'invalidation_id' FROM outbox WHERE status = 'Failed' AND kind = 'route_invalidation'
), recent AS MATERIALIZED (
    SELECT v.*
      FROM dag_current_versions c
      JOIN dag_version_datasets served ON served.dag_version_id = c.dag_version_id
      JOIN data_invalidations v
        ON v.dataset_version = served.dataset_version AND v.created_at >= $1 AND v.created_at < $2
     WHERE v.disposition = 'Route'
), lacking AS (
    SELECT v.id, v.org_id, jsonb_agg(DISTINCT j.id) AS jobs
      FROM recent v
      JOIN job_inputs i ON i.dataset_uuid = v.dataset_uuid AND i.live AND i.triggers
      JOIN jobs j ON j.id = i.job_id AND j.org_id = v.org_id AND j.activation = 'reactive'
      JOIN dag_current_versions reads ON reads.org_id = j.org_id AND reads.dag_name = j.dag_name
     WHERE v.routed_at >= reads.updated_at
       AND NOT EXISTS (
           SELECT FROM tasks t
            WHERE t.job_id = j.id
              AND t.dedupe_key = concat_ws(':', 'partition', v.dataset_uuid, v.dataset_version,
                                           v.partition_key, 'invalidation', v.id))
       AND NOT EXISTS (SELECT FROM held_events h WHERE h.job_id = j.id AND h.invalidation_id = v.id)
     GROUP BY v.id, v.org_id
), lost AS (
    SELECT id, org_id, jobs FROM lacking
    UNION ALL
    SELECT v.id, v.org_id, NULL FROM recent v WHERE v.routed_at IS NULL
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, dedupe_key)
    SELECT org_id, 'route_invalidation', jsonb_strip_nulls(jsonb_build_object('invalidation_id', id, 'jobs', jobs)),
           'again:invalidation:' || id
      FROM lost
     WHERE NOT EXISTS (SELECT FROM outstanding o WHERE o.invalidation_id = lost.id::text)
    ON CONFLICT (dedupe_key) WHERE dedupe_key IS NOT NULL AND status IN ('Pending', 'Processing') DO NOTHING
    RETURNING id
)
SELECT count(*) FROM entries;

-- name: republish_wake_ups
-- Publishes wake-ups again for queued tasks whose message must be lost: it was sent longer ago ($1) than the oldest that
-- still waits on the queue of their runtime and priority ($2, $3, $4). A superfluous message does no harm.
WITH outstanding AS MATERIALIZED (
    SELECT payload ->> 'task_id' AS task_id FROM outbox WHERE status = 'Pending' AND kind = 'enqueue_task'
    UNION ALL SELECT payload ->> 'task_id' FROM outbox WHERE status = 'Processing' AND kind = 'enqueue_task'
), lost AS (
    SELECT t.id, t.org_id, j.runtime
      FROM tasks t
      JOIN jobs j ON j.id = t.job_id
      JOIN running_versions c
        ON c.org_id = j.org_id AND c.dag_name = j.dag_name AND c.dag_version_id = j.dag_version_id
      JOIN unnest($2::text[], $3::work_priority[], $4::interval[]) AS q (runtime, priority, oldest)
        ON q.runtime = j.runtime AND q.priority = t.priority
     WHERE t.status = 'Queued' AND t.woken_at < now() - $1::interval - q.oldest
       AND NOT EXISTS (SELECT FROM outstanding o WHERE o.task_id = t.id::text)
       FOR NO KEY UPDATE OF t SKIP LOCKED
), woken AS (
    UPDATE tasks t SET woken_at = now() FROM lost
     WHERE t.id = lost.id AND (t.status = 'Queued') IS TRUE
    RETURNING t.id, t.org_id, t.job_id, t.priority, lost.runtime
), entries AS (
    INSERT INTO outbox (org_id, kind, payload)
    SELECT org_id, 'enqueue_task', wake_up_of(id, runtime, priority, org_id, job_id) FROM woken
)
SELECT count(*) FROM woken;
