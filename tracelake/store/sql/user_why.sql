-- name: task_facts
-- What decides when a task runs, beside the task itself: the slots of its job, and its outbox entry.
SELECT jsonb_build_object(
           'active', EXISTS (SELECT FROM dag_current_versions c
                              WHERE c.org_id = t.org_id AND c.dag_version_id = j.dag_version_id),
           'edge', (SELECT jsonb_build_object('position', i.position, 'where', i.where_tree, 'live', i.live)
                      FROM job_inputs i
                     WHERE i.job_id = j.id AND i.org_id = t.org_id
                       AND i.dataset_uuid = coalesce(
                           (SELECT e.dataset_uuid FROM events e WHERE e.id = t.event_id AND e.org_id = t.org_id),
                           (SELECT v.dataset_uuid FROM data_invalidations v
                             WHERE v.id = t.invalidation_id AND v.org_id = t.org_id))
                     ORDER BY i.position LIMIT 1),
           'max_concurrency', (j.scaling ->> 'max_concurrency')::integer,
           'held', j.activation = 'source' AND held_by_pressure(j.id),
           'shared_limit', (SELECT string_agg(format('%s of %s %s (max_in_flight)', n.in_flight, l.max_in_flight, l.kind || ' ' || l.name),
                                              ', ' ORDER BY l.kind, l.name)
                              FROM in_flight_limits l
                              CROSS JOIN LATERAL (
                                  SELECT count(*) AS in_flight FROM jobs k JOIN tasks f ON f.job_id = k.id
                                   WHERE CASE l.kind WHEN 'operator' THEN k.operator ELSE k.runtime END = l.name
                                     AND f.status IN ('Queued', 'Running') AND f.woken_at IS NOT NULL
                                     AND k.source ->> 'kind' IS DISTINCT FROM 'always_on') n
                             WHERE (l.kind = 'operator' AND l.name = j.operator) OR (l.kind = 'runtime' AND l.name = j.runtime)),
           'org_limit', (SELECT string_agg(format('%s of the organisation''s limit of %s (%s)', s.used, s.most, s.name), ', '
                                           ORDER BY s.most - s.used, s.name)
                           FROM org_slots(t.org_id, false) s
                          WHERE s.runtimes IS NULL OR j.runtime = ANY (s.runtimes)),
           'stored', (SELECT s.bytes FROM org_storage s WHERE s.org_id = t.org_id AND is_storage_full(t.org_id)),
           'most_stored', org_limit(t.org_id, 'object_bytes'),
           'in_flight', (SELECT count(*) FROM tasks f
                          WHERE f.job_id = j.id AND f.status IN ('Queued', 'Running') AND f.woken_at IS NOT NULL),
           'ahead', (SELECT count(*) FROM tasks w
                      WHERE w.job_id = j.id AND w.status = 'Queued' AND w.woken_at IS NULL
                        AND (w.priority, w.queued_at) < (t.priority, t.queued_at)),
           'outbox_entry', (SELECT jsonb_build_object('id', o.id, 'status', o.status, 'attempts', o.attempts,
                                                 'available_at', o.available_at, 'last_error', o.last_error)
                         FROM (SELECT * FROM outbox WHERE status = 'Pending'
                               UNION ALL SELECT * FROM outbox WHERE status = 'Processing'
                               UNION ALL SELECT * FROM outbox WHERE status = 'Failed') o
                        WHERE o.org_id = t.org_id AND o.kind = 'enqueue_task' AND o.payload ->> 'task_id' = t.id::text
                        ORDER BY o.id DESC LIMIT 1)
       )::text
  FROM tasks t
  JOIN jobs j ON j.id = t.job_id AND j.org_id = t.org_id
 WHERE t.id = $1 AND t.org_id = $2;

-- name: find_partition
-- The last commit of a partition of a dataset's current generation, by its key or a range that covers it.
SELECT c.task_id, c.number, p.partition_key
  FROM datasets d
  JOIN dag_current_versions a ON a.org_id = d.org_id AND a.dag_name = d.producer_dag_name
  JOIN dag_version_datasets s ON s.dag_version_id = a.dag_version_id AND s.dataset_uuid = d.id
  JOIN partition_versions p ON p.dataset_version = s.dataset_version AND p.valid_to IS NULL
  JOIN commits c ON c.dataset_uuid = p.dataset_uuid AND c.number = p.valid_from
 WHERE d.org_id = $1 AND d.id = $2 AND (p.partition_key = $3 OR p.block_range @> int8range($4, $5))
 ORDER BY p.partition_key = $3 DESC
 LIMIT 1;

-- name: find_event
-- The newest event of a dataset about a partition, by its key or a range that covers it; one to be routed first.
SELECT e.id, e.created_at, e.disposition::text, e.audit_reason, e.routed_at, o.id AS outbox_entry,
       o.status::text AS entry_status, o.last_error, e.partition_key, e.origin::text, e.producer_task_id
  FROM events e
  LEFT JOIN (SELECT * FROM outbox WHERE status = 'Pending'
             UNION ALL SELECT * FROM outbox WHERE status = 'Processing'
             UNION ALL SELECT * FROM outbox WHERE status = 'Failed') o
         ON o.org_id = e.org_id AND o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text
 WHERE e.org_id = $1 AND e.dataset_uuid = $2 AND (e.partition_key = $3 OR e.block_range @> int8range($4, $5))
 ORDER BY e.disposition = 'Route' DESC, e.partition_key = $3 DESC, e.created_at DESC
 LIMIT 1;

-- name: list_readers
-- The active jobs that read the dataset of an event, and what became of the event for each: a task, a wait, or nothing.
SELECT DISTINCT ON (j.id) j.dag_name AS dag, j.name AS job, i.where_tree IS NOT NULL AS narrowed, h.held_at,
       t.id AS task, t.status::text AS status, t.created_at
  FROM events e
  JOIN job_inputs i ON i.dataset_uuid = e.dataset_uuid AND i.live
  JOIN jobs j ON j.id = i.job_id AND j.org_id = e.org_id AND j.activation = 'reactive'
  LEFT JOIN tasks t ON t.job_id = j.id AND t.event_id = e.id
  LEFT JOIN held_events h ON h.job_id = j.id AND h.event_id = e.id
 WHERE e.id = $1 AND e.org_id = $2
 ORDER BY j.id;

-- name: find_part
-- A task of a dataset's producing job over a part of a range, for jobs that join parts: one that has not completed
-- first; and how many parts there are.
SELECT t.id, count(*) OVER () AS parts
  FROM datasets d
  JOIN jobs j ON j.org_id = d.org_id AND j.dag_name = d.producer_dag_name AND j.name = d.producer_job_name
  JOIN tasks t ON t.job_id = j.id AND t.org_id = d.org_id
 WHERE d.org_id = $1 AND d.id = $2 AND $3::text IS NOT NULL AND $4::bigint IS NOT NULL AND t.input_versions ? 'start'
   AND int8range((t.input_versions ->> 'start')::bigint, (t.input_versions ->> 'end')::bigint, '[]')
       && int8range($4, $5)
 ORDER BY t.status IN ('Completed', 'Canceled'), t.id DESC
 LIMIT 1;

-- name: find_task
-- The newest task of a dataset's producing job for a partition, or a range that covers it.
SELECT t.id, t.status::text
  FROM datasets d
  JOIN jobs j ON j.org_id = d.org_id AND j.dag_name = d.producer_dag_name AND j.name = d.producer_job_name
  JOIN tasks t ON t.job_id = j.id AND t.org_id = d.org_id
 WHERE d.org_id = $1 AND d.id = $2
   AND ($3 = ANY (t.partitions)
        -- With both ends NULL, int8range would cover everything.
        OR ($4::bigint IS NOT NULL AND t.input_versions ? 'start'
            AND int8range((t.input_versions ->> 'start')::bigint, (t.input_versions ->> 'end')::bigint, '[]')
                @> int8range($4, $5)))
 ORDER BY t.id DESC
 LIMIT 1;

-- name: list_input_events
-- Events of the producing job's inputs about a partition, and what became of them.
SELECT e.id, e.created_at, e.disposition::text, e.audit_reason, e.routed_at, o.id AS outbox_entry,
       o.status::text AS entry_status, o.last_error, coalesce(d.name, d.id::text) AS dataset, h.held_at,
       p.reason::text AS pause_reason, p.since AS paused_since, cause.dag_name || '.' || cause.name AS pause_cause,
       p.threshold::float8 AS pause_limit, p.observed::float8 AS pause_observed
  FROM datasets wanted
  JOIN dag_current_versions a ON a.org_id = wanted.org_id AND a.dag_name = wanted.producer_dag_name
  JOIN jobs j ON j.dag_version_id = a.dag_version_id AND j.name = wanted.producer_job_name
  JOIN job_inputs i ON i.job_id = j.id
  JOIN datasets d ON d.id = i.dataset_uuid
  JOIN events e ON e.dataset_uuid = i.dataset_uuid AND e.org_id = wanted.org_id
  LEFT JOIN held_events h ON h.job_id = j.id AND h.event_id = e.id
  LEFT JOIN LATERAL (SELECT * FROM paused_jobs
                      WHERE job_id IN (h.job_id, h.waits_for) ORDER BY since LIMIT 1) p ON true
  LEFT JOIN jobs cause ON cause.id = p.cause_job_id
  LEFT JOIN (SELECT * FROM outbox WHERE status = 'Pending'
             UNION ALL SELECT * FROM outbox WHERE status = 'Processing'
             UNION ALL SELECT * FROM outbox WHERE status = 'Failed') o
         ON o.org_id = e.org_id AND o.kind = 'route_event' AND o.payload ->> 'event_id' = e.id::text
 WHERE wanted.org_id = $1 AND wanted.id = $2 AND (e.partition_key = $3 OR e.block_range @> int8range($4, $5))
 ORDER BY e.created_at DESC
 LIMIT 5;

-- name: find_producer
-- The job that writes a dataset, whether its DAG is active, and what it reads.
SELECT d.producer_dag_name AS dag, d.producer_job_name AS job, a.dag_version_id IS NOT NULL AS active,
       j.activation::text, j.source ->> 'kind' AS source,
       (SELECT array_agg(coalesce(i.name, i.id::text) ORDER BY e.position)
          FROM job_inputs e JOIN datasets i ON i.id = e.dataset_uuid WHERE e.job_id = j.id) AS inputs
  FROM datasets d
  LEFT JOIN dag_current_versions a ON a.org_id = d.org_id AND a.dag_name = d.producer_dag_name
  LEFT JOIN jobs j ON j.dag_version_id = a.dag_version_id AND j.name = d.producer_job_name
 WHERE d.org_id = $1 AND d.id = $2;

-- name: list_repeated_events
-- Events about the same part as a task's event that created no task of their own, because of the dedupe key.
SELECT e.id, e.created_at
  FROM tasks t
  JOIN events first ON first.id = t.event_id
  JOIN events e ON e.org_id = t.org_id AND e.dataset_uuid = first.dataset_uuid
               AND e.dataset_version = first.dataset_version AND e.scope = first.scope AND e.id <> first.id
 WHERE t.id = $1 AND t.org_id = $2 AND e.routed_at IS NOT NULL AND t.invalidation_id IS NULL
   AND NOT EXISTS (SELECT FROM tasks other WHERE other.job_id = t.job_id AND other.event_id = e.id AND other.org_id = $2)
 ORDER BY e.created_at
 LIMIT 5;

-- name: list_writers
-- The active jobs that write a dataset, whether they are paused, and their tasks that have not completed: by state, how
-- many there are, the newest of them and its error.
SELECT j.dag_name AS dag, j.name AS job, j.activation::text, j.source ->> 'kind' AS source,
       (SELECT array_agg(coalesce(i.name, i.id::text) ORDER BY e.position)
          FROM job_inputs e JOIN datasets i ON i.id = e.dataset_uuid WHERE e.job_id = j.id) AS inputs,
       p.reason::text AS pause_reason, p.since AS paused_since, cause.dag_name || '.' || cause.name AS pause_cause,
       p.threshold::float8 AS pause_limit, p.observed::float8 AS pause_observed,
       (SELECT count(*) FROM held_events h WHERE h.job_id = j.id) AS held,
       s.state, coalesce(s.tasks, 0) AS tasks, s.newest, s.since, t.error_message AS error
  FROM datasets d
  JOIN dag_current_versions a ON a.org_id = d.org_id AND a.dag_name = d.producer_dag_name
  JOIN jobs j ON j.dag_version_id = a.dag_version_id AND d.id = ANY (j.output_datasets)
  LEFT JOIN LATERAL (SELECT * FROM paused_jobs WHERE job_id = j.id ORDER BY since LIMIT 1) p ON true
  LEFT JOIN jobs cause ON cause.id = p.cause_job_id
  LEFT JOIN LATERAL (
      SELECT 'queued' AS state, count(*) AS tasks, (array_agg(q.id ORDER BY q.id DESC))[1] AS newest,
             min(q.queued_at) AS since
        FROM tasks q WHERE q.job_id = j.id AND q.status = 'Queued' HAVING count(*) > 0
      UNION ALL
      SELECT 'running', count(*), (array_agg(r.id ORDER BY r.id DESC))[1], min(r.started_at)
        FROM tasks r WHERE r.job_id = j.id AND r.status = 'Running' AND r.woken_at IS NOT NULL HAVING count(*) > 0
      UNION ALL
      SELECT 'waits for a retry', count(*), (array_agg(f.id ORDER BY f.id DESC))[1], min(f.completed_at)
        FROM tasks f WHERE f.job_id = j.id AND f.status = 'Failed' AND f.next_retry_at IS NOT NULL HAVING count(*) > 0
      UNION ALL
      SELECT 'failed', count(*), (array_agg(f.id ORDER BY f.id DESC))[1], min(f.completed_at)
        FROM tasks f WHERE f.org_id = j.org_id AND f.job_id = j.id AND f.status = 'Failed' AND f.next_retry_at IS NULL
      HAVING count(*) > 0) s ON true
  LEFT JOIN tasks t ON t.id = s.newest
 WHERE d.org_id = $1 AND d.id = $2
 ORDER BY j.name, s.state;

-- name: find_last_event
-- The newest event of a dataset; one without rows, such as that of a manual source, consists of events alone.
SELECT e.scope, e.created_at
  FROM events e
 WHERE e.org_id = $1 AND e.dataset_uuid = $2
 ORDER BY e.created_at DESC
 LIMIT 1;
