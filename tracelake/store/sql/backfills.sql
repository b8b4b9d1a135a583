-- name: insert_backfill
-- Stores a backfill, which the loop begins at once.
INSERT INTO backfills (org_id, dag_name, job_name, block_range, newest_first, again, budget_tasks, budget_until, planned,
                       created_by, budget_requests, budget_bytes)
VALUES ($1, $2, $3, CASE WHEN $4::bigint IS NOT NULL THEN int8range($4, $5) END, $6, $7, $8,
        CASE WHEN $9::float8 IS NOT NULL THEN now() + make_interval(secs => $9 * 3600) END, $10, $11, $12, $13)
RETURNING id;

-- name: list_backfills
-- The backfills of an organisation, the newest first; or one of them ($2). Open tasks are those of the DAG about such data;
-- what such tasks have used since is counted for one, and for those that have not ended.
SELECT b.id, b.dag_name AS dag, b.job_name AS job, coalesce(block_range_key(b.block_range), 'gaps') AS scope,
       b.status::text, b.ended_because, CASE WHEN b.newest_first THEN 'newest' ELSE 'oldest' END AS order, b.again,
       b.stopped_because, b.budget_tasks, b.budget_until, b.budget_requests, b.budget_bytes, b.planned, b.created,
       u.requests AS used_requests, u.bytes AS used_bytes,
       (SELECT count(*) FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
          JOIN tasks t ON t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.history
         WHERE c.org_id = b.org_id AND c.dag_name = b.dag_name) AS open_tasks,
       b.created_at, b.ended_at, coalesce(s.email, s.external_id) AS created_by
  FROM backfills b
  LEFT JOIN users s ON s.org_id = b.org_id AND s.id = b.created_by
  LEFT JOIN LATERAL (
      SELECT coalesce(sum(t.node_requests), 0)::bigint AS requests, coalesce(sum(t.bytes_written), 0)::bigint AS bytes
        FROM jobs j
        JOIN tasks t ON t.job_id = j.id AND t.history AND (t.node_requests > 0 OR t.bytes_written > 0)
                    AND t.created_at >= b.created_at AND t.created_at <= coalesce(b.ended_at, 'infinity')
       WHERE j.org_id = b.org_id AND j.dag_name = b.dag_name) u ON $2::uuid IS NOT NULL OR b.ended_at IS NULL
 WHERE b.org_id = $1 AND ($2::uuid IS NULL OR b.id = $2)
 ORDER BY b.id DESC
 LIMIT 100;

-- name: set_status
-- Pauses, resumes or cancels a backfill ($2) that is in one of the states $4. Budgets ($5 to $8: tasks, hours from now,
-- requests, bytes) replace those that it has.
UPDATE backfills
   SET status = $3::text::backfill_status, due_at = now(), stopped_because = NULL,
       budget_tasks = coalesce($5, budget_tasks), budget_requests = coalesce($7, budget_requests),
       budget_bytes = coalesce($8, budget_bytes),
       budget_until = coalesce(now() + make_interval(secs => $6::float8 * 3600), budget_until),
       ended_at = CASE WHEN $3::text = 'Canceled' THEN now() END,
       ended_because = CASE WHEN $3::text = 'Canceled' THEN 'canceled' END
 WHERE org_id = $1 AND id = $2 AND status::text = ANY ($4::text[])
RETURNING id;

-- name: take_backfill
-- The backfill whose next batch is due, locked; and the most that a task about such data has used since it began.
SELECT b.id, b.org_id, b.dag_name, b.job_name, lower(b.block_range) AS start, upper(b.block_range) AS stop, b.newest_first,
       b.again, b.budget_tasks - b.created AS tasks_left, b.budget_until <= now() IS TRUE AS is_over, b.place::text,
       b.created_at, b.budget_requests IS NOT NULL OR b.budget_bytes IS NOT NULL AS is_metered,
       b.budget_requests - u.requests AS requests_left, b.budget_bytes - u.bytes AS bytes_left,
       u.most_requests, u.most_bytes
  FROM backfills b
  LEFT JOIN LATERAL (
      SELECT coalesce(sum(t.node_requests), 0)::bigint AS requests, coalesce(sum(t.bytes_written), 0)::bigint AS bytes,
             max(t.node_requests) AS most_requests, max(t.bytes_written) AS most_bytes
        FROM jobs j
        JOIN tasks t ON t.job_id = j.id AND t.history AND (t.node_requests > 0 OR t.bytes_written > 0)
                    AND t.created_at >= b.created_at
       WHERE j.org_id = b.org_id AND j.dag_name = b.dag_name) u ON b.budget_requests IS NOT NULL OR b.budget_bytes IS NOT NULL
 WHERE b.status = 'Running' AND b.due_at <= now()
 ORDER BY b.due_at, b.id
 LIMIT 1
   FOR UPDATE OF b SKIP LOCKED;

-- name: count_open
-- The work of a DAG ($1, $2) about data of before that has not ended: tasks, and events of a backfill ($3) that were not routed.
SELECT (SELECT count(*) FROM dag_current_versions c
          JOIN jobs j ON j.dag_version_id = c.dag_version_id
          JOIN tasks t ON t.job_id = j.id AND t.status IN ('Queued', 'Running') AND t.history
         WHERE c.org_id = $1 AND c.dag_name = $2)
     + (SELECT count(*) FROM events e WHERE e.producer_run_id = $3 AND e.routed_at IS NULL AND e.disposition = 'Route');

-- name: stop_backfill
-- Stops a backfill whose budget is used up, with the reason; it can be resumed with a larger one.
UPDATE backfills SET status = 'Paused', stopped_because = $2, created = created + $3 WHERE id = $1 AND status = 'Running';

-- name: count_queued
-- How many tasks of these jobs wait, $2 at most; $2 while one of them is paused, so that none is added.
SELECT CASE WHEN EXISTS (SELECT FROM pauses p
                          WHERE p.job_id = ANY ($1::uuid[]) AND p.until IS NULL AND (p.cause_job_id IS NULL OR p.priority = 'bulk'))
            THEN $2::bigint
            ELSE (SELECT count(*) FROM (SELECT FROM tasks t
                                         WHERE t.job_id = ANY ($1::uuid[]) AND t.status = 'Queued' LIMIT $2) q) END;

-- name: continue_backfill
-- Records how far a backfill has come; the next batch is due after $4.
UPDATE backfills SET place = $2::jsonb, created = created + $3, due_at = now() + $4::interval WHERE id = $1;

-- name: end_backfill
-- Ends a backfill, with the reason.
UPDATE backfills
   SET status = 'Done', ended_at = now(), ended_because = $2, created = created + $3
 WHERE id = $1 AND status = 'Running';

-- name: next_backfill
-- Seconds until a batch of a backfill is due.
SELECT extract(epoch FROM min(due_at) - now())::float8 FROM backfills WHERE status = 'Running';

-- name: mark_again
-- Units ($3 to $5: partition, cursor, commit) of a generation ($2) that the lineage of a job ($1) had processed before $6 are
-- to be processed again.
UPDATE processed_inputs p
   SET again = true
  FROM jobs j,
       unnest($3::text[], $4::bigint[], $5::bigint[]) AS u (partition_key, cursor_value, commit_number)
 WHERE j.id = $1 AND p.lineage_id = j.lineage_id AND p.dataset_version = $2 AND NOT p.again AND p.read_at < $6
   AND p.partition_key = CASE WHEN j.makes_whole THEN ''
                              ELSE processed_key(u.partition_key, u.cursor_value, u.commit_number) END;

-- name: list_outputs
-- The outputs of a manual source of the active version, with their generations.
SELECT j.id AS job_id, s.dataset_uuid, s.dataset_version
  FROM dag_current_versions c
  JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3
  JOIN dag_version_datasets s ON s.dag_version_id = c.dag_version_id AND s.dataset_uuid = ANY (j.output_datasets)
 WHERE c.org_id = $1 AND c.dag_name = $2
 ORDER BY 2;

-- name: list_sent_ranges
-- The ranges of blocks of a generation ($1, $2) that have an event, merged, within a range.
SELECT lower(r) AS start, upper(r) AS stop
  FROM (SELECT unnest(range_agg(e.block_range) * int8multirange(int8range($3, $4))) AS r
          FROM events e
         WHERE e.dataset_uuid = $1 AND e.dataset_version = $2 AND e.block_range && int8range($3, $4)) sent;

-- name: store_source_events
-- Events of a manual source for a backfill ($2), about data of before, with an outbox entry to route each.
WITH stored AS (
    INSERT INTO events (id, org_id, origin, kind, producer_run_id, dataset_uuid, dataset_version, scope, partition_key,
                        block_range, history)
    SELECT v.event_id, $1, 'manual', 'partition', $2, v.dataset_uuid, v.dataset_version,
           'partition:' || block_range_key(v.block_range), block_range_key(v.block_range), v.block_range, true
      FROM (SELECT event_id, dataset_uuid, dataset_version, int8range(start, stop) AS block_range
              FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::bigint[], $7::bigint[])
                  AS n (event_id, dataset_uuid, dataset_version, start, stop)) v
    ON CONFLICT DO NOTHING
    RETURNING id, org_id, dataset_uuid
), entries AS (
    INSERT INTO outbox (org_id, kind, payload, turn_of)
    SELECT org_id, 'route_event', jsonb_build_object('event_id', id), dataset_uuid FROM stored
)
SELECT count(*) FROM stored;

-- name: jobs_of_dag
-- The jobs of the active version of a DAG.
SELECT j.id FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
 WHERE c.org_id = $1 AND c.dag_name = $2;
