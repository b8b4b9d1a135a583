-- name: queued
-- Depth and age of every job's queue.
SELECT o.slug AS org, j.dag_name AS dag, j.name AS job, sum(q.depth)::float8 AS depth,
       greatest(extract(epoch FROM now() - min(q.oldest)), 0)::float8 AS oldest
  FROM (SELECT job_id, count(*) AS depth, min(queued_at) AS oldest
          FROM tasks WHERE status = 'Queued' GROUP BY job_id) q
  JOIN jobs j ON j.id = q.job_id
  JOIN orgs o ON o.id = j.org_id
 GROUP BY o.slug, j.dag_name, j.name;

-- name: in_flight
-- Tasks by operator and runtime: woken and not claimed yet, running, and waiting for a slot. Always-on sources are left out.
SELECT j.operator, j.runtime, s.state, sum(s.tasks)::float8 AS tasks
  FROM (SELECT job_id, CASE WHEN status = 'Running' THEN 'running' ELSE 'woken' END AS state, count(*) AS tasks
          FROM tasks WHERE status IN ('Queued', 'Running') AND woken_at IS NOT NULL GROUP BY 1, 2
        UNION ALL
        SELECT job_id, 'waiting', count(*) FROM tasks WHERE status = 'Queued' AND woken_at IS NULL GROUP BY 1) s
  JOIN jobs j ON j.id = s.job_id
 WHERE j.source ->> 'kind' IS DISTINCT FROM 'always_on'
 GROUP BY 1, 2, 3;

-- name: outbox_pending
-- Outbox entries that are not done, and how long the oldest has been due; entries in process count until they are done.
SELECT k.kind::text, coalesce(p.depth, 0)::float8 AS depth,
       greatest(extract(epoch FROM now() - p.oldest), 0)::float8 AS oldest
  FROM unnest(enum_range(NULL::outbox_kind)) AS k (kind)
  LEFT JOIN (
      SELECT kind, count(*) AS depth, min(available_at) AS oldest
        FROM (SELECT kind, available_at FROM outbox WHERE status = 'Pending'
              UNION ALL SELECT kind, available_at FROM outbox WHERE status = 'Processing') outstanding
       GROUP BY kind) p ON p.kind = k.kind;

-- name: outbox_dead
-- Outbox entries that have failed for good.
SELECT k.kind::text, coalesce(d.dead, 0)::float8 AS dead
  FROM unnest(enum_range(NULL::outbox_kind)) AS k (kind)
  LEFT JOIN (SELECT kind, count(*) AS dead FROM outbox WHERE status = 'Failed' GROUP BY kind) d ON d.kind = k.kind;

-- name: lags
-- How late lease expiry and retries are: the oldest lease past its end, the oldest retry past its time; and dead batches.
SELECT greatest(extract(epoch FROM now() - (
           SELECT min(lease_expires_at) FROM tasks WHERE status = 'Running')), 0)::float8 AS lease,
       greatest(extract(epoch FROM now() - (
           SELECT min(next_retry_at) FROM tasks WHERE status = 'Failed' AND next_retry_at IS NOT NULL)), 0)::float8 AS retry,
       (SELECT count(*) FROM buffer_publishes WHERE status = 'Dead')::float8 AS batches_dead;

-- name: sources
-- Always-on sources by state.
SELECT k.state::text, count(s.job_id)::float8 AS count
  FROM unnest(enum_range(NULL::source_state)) AS k (state)
  LEFT JOIN sources s ON s.state = k.state
 GROUP BY k.state;

-- name: paused
-- Jobs that get no new tasks, by reason.
SELECT DISTINCT o.slug AS org, j.dag_name AS dag, j.name AS job, p.reason::text
  FROM paused_jobs p
  JOIN jobs j ON j.id = p.job_id
  JOIN orgs o ON o.id = j.org_id;

-- name: held
-- What waits for paused jobs.
SELECT o.slug AS org, j.dag_name AS dag, j.name AS job, sum(h.held)::float8 AS held
  FROM (SELECT job_id, count(*) AS held FROM held_events GROUP BY job_id) h
  JOIN jobs j ON j.id = h.job_id
  JOIN orgs o ON o.id = j.org_id
 GROUP BY o.slug, j.dag_name, j.name;
